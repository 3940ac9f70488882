// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// A sum of two maps is right only if nothing went from one to the other in between.
func TestRunsMoved(t *testing.T) {
	t.Parallel()
	run := func(device uint32, n uint64) bpfgen.TypesSlEventState {
		return bpfgen.TypesSlEventState{Key: bpfgen.TypesSlDropKey{Device: device}, Run: n}
	}
	for name, tt := range map[string]struct {
		before, after bpfgen.TypesSlEventState
		want          bool
	}{
		"nothing":          {run(1, 5), run(1, 5), false},
		"more of the kind": {run(1, 5), run(1, 9), false},
		"another kind":     {run(1, 5), run(2, 9), true},
		"there and back":   {run(1, 5), run(1, 2), true},
		"the first":        {run(0, 0), run(1, 1), false},
	} {
		if got := (runs{tt.after}).moved(runs{tt.before}); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
