// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
)

// With lowest_first pods get the lowest free address, as whereabouts gives it: on a fresh pool, beside other nodes, and after a DEL.
func TestLowestFirst(t *testing.T) {
	t.Parallel()
	for _, q := range families() {
		w := calmWorld(t)
		q.Range.Lowest, q.BlockSize = true, 1
		nodes := []*modelNode{w.newNode(), w.newNode()}
		w.spawn("process", func(a *actor) {
			claimers := []*Claimer{nodes[0].claimer(a), nodes[1].claimer(a)}
			for i, want := range []uint64{1, 2, 3, 4} {
				if got := nodes[i%2].used(claimers[i%2], q, "p")["p"]; got != want {
					t.Errorf("pod %d: offset %d", i, got)
				}
			}
			err := updateAll(claimers[0], q, func(s *blocks.State) {
				s.Last = 3
				s.Free(1)
			})
			if err != nil {
				t.Error(err)
			}
			if got := nodes[0].used(claimers[0], q, "again")["again"]; got != 1 {
				t.Errorf("after a DEL: offset %d", got)
			}
		})
		w.run()
	}
}
