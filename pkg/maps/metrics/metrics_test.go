// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
)

// A reason that C has and Go does not name would be shown as a number.
func TestEveryReasonHasAName(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for r := Reason(0); r < Max; r++ {
		name := r.String()
		if strings.HasPrefix(name, "reason ") || seen[name] {
			t.Errorf("reason %d: %q", uint32(r), name)
		}
		seen[name] = true
	}
}
