// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// A table that is full gives its oldest entries away, not those that it has just been given: a masqueraded packet never leaves
// without a way back. All packets come by one CPU here, whose share of the table is the least there is.
func TestPrivilegedTablesFull(t *testing.T) {
	fx := newFixture(t, nil)
	fx.modes = fx.modes[:1]
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			for i := range uint16(fixtureSizes["sl_ct_unassured"]) { // two entries each
				j := w.opens(family, udp, podA, keptPort, keptPort)
				j.inside.remote = at(client(family), serverTCP+1+i)
				j.outside.remote = j.inside.remote
				j.out("")
				w.wantFlow(unproven, j.inside, flowPodOpened|flowSNAT|flowTXFirst|flowTXConfirm)
				w.wantIndex(unproven, j.outside, j.inside)
				if t.Failed() {
					t.Fatalf("after %d flows", i)
				}
			}
			entries := 0
			w.eachFlow(unproven, func(bpfgen.TypesSlTuple, bpfgen.TypesSlCtEntry) { entries++ })
			if entries > int(fixtureSizes["sl_ct_unassured"]) {
				t.Errorf("%d entries: nothing was evicted", entries)
			}
		}, masquerading(podA))
	}
}

// What comes out of nowhere makes no record: what the pod opens toward the same end afterwards is masqueraded.
func TestPrivilegedStray(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		if proto == udp {
			return // any datagram may open a flow
		}
		j := w.opens(family, proto, podA, keptPort, keptPort)
		direct := w.plain(family, proto, podA, keptPort)
		for _, kind := range []string{"A", "PA", "SA", "FA", "RA", "R"} {
			j.ignored(kind)
			direct.ignored(kind)
		}
		w.wantFlows(0, 0)
		j.answered()
		j.inFast("PA")
	}, masquerading(podA))
}
