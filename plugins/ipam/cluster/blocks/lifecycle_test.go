// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Each transition moves exactly what it names, and what it does not name stays where it is.
func TestTransitions(t *testing.T) {
	t.Parallel()
	pod, vm := pool.HoldFor(pool.HeldPod, "ns", "web-0", "net1"), pool.HoldFor(pool.HeldVM, "ns", "claim", "vm")
	a := func(first, last uint64) Claim { return Claim{ID: "a", Runs: [][2]uint64{{first, last}}} }
	held := Claim{ID: "h", Runs: [][2]uint64{{7, 7}}, Hold: pod}
	shared := Claim{ID: "s", Runs: [][2]uint64{{8, 8}}, Hold: vm}
	entries := func(id string, offsets ...uint64) map[uint64]pool.Entry {
		out := map[uint64]pool.Entry{}
		for _, off := range offsets {
			out[off] = pool.Entry{ID: id}
		}
		return out
	}
	for name, tc := range map[string]struct {
		before, after Lifecycle
		do            func(l *Lifecycle)
	}{
		"Try":     {Lifecycle{}, Lifecycle{Trying: []Claim{a(1, 3)}}, func(l *Lifecycle) { l.Try(a(1, 3)) }},
		"Refuse":  {Lifecycle{Trying: []Claim{a(1, 3), held}}, Lifecycle{Trying: []Claim{held}}, func(l *Lifecycle) { l.Refuse("a") }},
		"Confirm": {Lifecycle{Trying: []Claim{a(1, 3)}}, Lifecycle{Claims: []Claim{a(1, 3)}}, func(l *Lifecycle) { l.Confirm(entries("a", 1, 2, 3), nil) }},
		"Confirm of what has not arrived": {Lifecycle{Trying: []Claim{a(1, 3)}}, Lifecycle{Trying: []Claim{a(1, 3)}}, func(l *Lifecycle) {
			l.Confirm(entries("b", 1, 2, 3), nil)
		}},
		"Confirm of what has lost an entry": {Lifecycle{Trying: []Claim{a(1, 3)}}, Lifecycle{Claims: []Claim{a(1, 2)}}, func(l *Lifecycle) {
			if n := l.Confirm(entries("a", 1, 2), nil); n != 1 {
				t.Errorf("%d entries were removed", n)
			}
		}},
		"GiveBack": {Lifecycle{Claims: []Claim{a(1, 3)}}, Lifecycle{Claims: []Claim{a(1, 2)}, Giving: []Claim{a(3, 3)}}, func(l *Lifecycle) { l.GiveBack([]uint64{3}) }},
		"Drop":     {Lifecycle{Claims: []Claim{a(1, 3)}}, Lifecycle{Claims: []Claim{a(2, 3)}}, func(l *Lifecycle) { l.Drop([]uint64{1}) }},
		"Rest": {Lifecycle{Claims: []Claim{held, shared}}, Lifecycle{Resting: []Claim{held}}, func(l *Lifecycle) {
			l.Rest(7)
			l.Rest(8)
		}},
		"Forget": {Lifecycle{Giving: []Claim{a(1, 3), a(5, 6)}, Resting: []Claim{held}}, Lifecycle{Giving: []Claim{a(5, 6)}}, func(l *Lifecycle) {
			l.Forget([]Claim{a(1, 3), held})
		}},
	} {
		got := tc.before
		tc.do(&got)
		if diff := cmp.Diff(tc.after, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
