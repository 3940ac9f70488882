// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"
)

// heldPending makes shareKey() that of connections which wait for an answer.
const heldPending = 1 << 31

// pending opens connections of others that wait for an answer: podB's own, which are masqueraded, and clients' of a hostPort of podC.
func (w *walk) pending(family int) []*journey {
	w.tb.Helper()
	var all []*journey
	for i := range 50 {
		for _, p := range protocols {
			j := w.opens(family, p.proto, podB, uint16(snatMin2+i), uint16(snatMin2+i))
			j.sends("S")
			all = append(all, j)
		}
		j := w.toHostPort(family, tcp, podC)
		j.inside.remote = at(nth(family, 1<<17-1-i), clientPort)
		j.outside.remote = j.inside.remote
		j.gets("S")
		j.sends("SA")
		all = append(all, j)
	}
	return all
}

// wantAnswered has the other end of each answer: its connection must be the one that waited.
func wantAnswered(w *walk, pending []*journey) {
	w.tb.Helper()
	lost := 0
	for _, j := range pending {
		if j.pod == podC {
			j.gets("A")
		} else {
			j.gets("SA")
		}
		if _, ok := w.lookup(proven, j.inside); !ok {
			lost++
		}
	}
	if lost > 0 {
		w.tb.Errorf("%d of %d connections of others did not get their answers", lost, len(pending))
	}
}

// wantOwnAnswered checks that podA's connections can still be answered: a flood evicts the oldest of its own.
func wantOwnAnswered(w *walk, family, proto int) {
	w.tb.Helper()
	own := w.opens(family, proto, podA, keptPort, keptPort)
	if !own.sends("S") {
		w.tb.Fatal("a connection of the flooding pod is dropped")
	}
	own.gets("SA")
	if _, ok := w.lookup(proven, own.inside); !ok {
		w.tb.Error("an answer to the flooding pod finds no connection")
	}
}

// One pod opens connections that nobody answers, as many as it can. Those of others that wait for an answer stay.
func TestPrivilegedSharePendingPod(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			shareCases(t, func(w *walk, family int) {
				others := w.pending(family)
				refused := 0
				for i := range *volumeFlag {
					port := uint16(snatMin2 + i%(snatMax2-snatMin2))
					j := w.opens(family, p.proto, podA, port, port)
					j.inside.remote = at(nth(family, i/(snatMax2-snatMin2)), 443)
					j.outside.remote = j.inside.remote
					if !j.sends("S") {
						refused++
					}
				}
				w.tb.Logf("the flooding pod holds %d of %d places, and was refused %d", w.held(podA, p.proto, flowPodOpened|heldPending), pendingPlaces, refused)
				if refused > *volumeFlag/1000 {
					t.Errorf("%d connections of the flooding pod were dropped: it has the most places, so it gives up its own", refused)
				}
				wantAnswered(w, others)
				wantOwnAnswered(w, family, p.proto)
			})
		})
	}
}

// So they do while spoofed sources ask for a hostPort of one pod, and clients of that one still connect.
func TestPrivilegedSharePendingSpoofed(t *testing.T) {
	for _, p := range protocols[:2] {
		t.Run(p.name, func(t *testing.T) {
			shareCases(t, func(w *walk, family int) {
				second := mapping(family, p.proto, podA)
				second.host = at(unspecified(family), hostPort+1)
				w.publish(second)
				asks := func(from netip.AddrPort) *journey {
					j := w.toHostPort(family, p.proto, podA)
					j.inside.remote = from
					j.outside.local, j.outside.remote = at(upl0.addr(family), hostPort+1), from
					j.gets("S")
					return j
				}
				others := w.pending(family)
				for i := range *volumeFlag {
					asks(at(nth(family, i), uint16(1024+i>>17)))
				}
				wantAnswered(w, others)
				j := asks(at(client(family), clientPort))
				j.sends("SA")
				j.gets("A")
				if _, ok := w.lookup(proven, j.inside); !ok {
					t.Error("a client of the flooded port does not get through")
				}
			})
		})
	}
}
