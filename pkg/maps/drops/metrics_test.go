// SPDX-License-Identifier: Apache-2.0

package drops

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
		if r > 0 && (strings.HasPrefix(r.Name(), "reason-") || seen[r.Name()] || r.Advice() == "") {
			t.Errorf("reason %d: name %q, advice %q", uint32(r), r.Name(), r.Advice())
		}
		seen[name], seen[r.Name()] = true, true
	}
}
