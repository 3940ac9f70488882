// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

func (w *walk) counts() conntrack.Counts {
	w.tb.Helper()
	n, err := conntrack.NewCounters(w.views["sl_ct_counts"]).Read()
	if err != nil {
		w.tb.Fatal(err)
	}
	return n
}

func (w *walk) wantCounts(when string, want conntrack.Counts) {
	w.tb.Helper()
	if got := w.counts(); got != want {
		w.tb.Errorf("%s: counted %+v, want %+v", when, got, want)
	}
}

// Connections count when they begin and when they end. Packets in between count nothing, and reverse entries neither.
func TestPrivilegedConnectionCounts(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprintf("fin%d", family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.answered()
			w.wantCounts("open", conntrack.Counts{ByPod: 1})
			for range 3 {
				j.outFast("A")
				j.inFast("PA")
			}
			j.inFast("FA")
			w.wantCounts("half closed", conntrack.Counts{ByPod: 1})
			j.outFast("FA")
			w.wantCounts("closed", conntrack.Counts{ByPod: 1, Fin: 1})
			j.inFast("A")
			w.wantCounts("closed, last acknowledgment", conntrack.Counts{ByPod: 1, Fin: 1})
			k := w.opens(family, udp, podA, keptPort+1, keptPort+1)
			k.out("")
			k.in("")
			w.wantCounts("udp", conntrack.Counts{ByPod: 2, Fin: 1})
		}, masquerading(podA))
		fx.each(t, fmt.Sprintf("rst%d", family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			w.wantCounts("open", conntrack.Counts{ByClient: 1})
			j.outFast("R")
			w.wantCounts("reset", conntrack.Counts{ByClient: 1, Rst: 1})
		}, publishing(mapping(family, tcp, podA)))
		fx.each(t, fmt.Sprintf("restored%d", family), func(w *walk) {
			j := w.opens(family, udp, podA, keptPort, keptPort)
			j.out("")
			j.in("")
			w.evict(j.inside)
			j.in("")
			w.wantCounts("after the reverse entry restored the entry", conntrack.Counts{ByPod: 1, Restored: 1})
		}, masquerading(podA))
	}
}

// A connection between two pods of the node has an entry of each end.
func TestPrivilegedConnectionCountsOfPods(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			p := w.talk(family, tcp, podA, podB)
			p.slow("S")
			p.back().slow("SA")
			w.wantCounts("open", conntrack.Counts{ByPod: 1, ByClient: 1})
		})
	}
}
