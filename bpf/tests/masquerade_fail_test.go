// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// refused sends an opening packet that the uplink must drop.
func (j *journey) refused(kind string, want want) {
	j.tb.Helper()
	sent := j.dress(j.inside.tx(kind))
	sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
	b := j.step(podEgress, j.pod.name, sent.bytes(j.tb), passes(sent.bytes(j.tb)))
	j.step(uplEgress, j.up.name, route(b, j.up.mac, j.up.router), want)
}

// One port, two pods: the second one's packet is dropped and counted, and nothing
// of it stays but the record of what it wanted.
func TestPrivilegedMasqueradeExhaustion(t *testing.T) {
	fx := newFixture(t, map[string]uint32{
		"cfg_snat_min1": 61000, "cfg_snat_max1": 61000, "cfg_snat_min2": 0, "cfg_snat_max2": 0,
	})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		a := w.opens(family, proto, podA, movedPort, 61000)
		b := w.opens(family, proto, podB, movedPort, 61000)
		a.answered()
		w.wantFlows(2, 0)
		for range 3 {
			b.refused("S", wantDrop(reasonPorts, podB))
		}
		w.wantFlow(unproven, b.inside, flowPodOpened|flowTXFirst)
		w.wantFlows(2, 1)
		a.inFast("PA") // the first one does not notice
		// When its flow has ended, the port is free again, and the index goes to the other pod.
		w.later(25 * time.Hour)
		b.answered()
		w.wantIndex(proven, b.outside, b.inside)
	}, masquerading(podA, podB))
}

// The second range is asked when the first one has nothing.
func TestPrivilegedMasqueradeSecondRange(t *testing.T) {
	fx := newFixture(t, map[string]uint32{
		"cfg_snat_min1": 61000, "cfg_snat_max1": 61000, "cfg_snat_min2": 2000, "cfg_snat_max2": 2003,
	})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(0)
		w.keepPorts(61000, 61000)
		// Try 17 is the first of the second range: 2000 + (0 + 17) % 4.
		w.opens(family, proto, podA, movedPort, 2001).answered()
		w.opens(family, proto, podB, movedPort, 2002).answered()
		w.opens(family, proto, podB, 2003, 2003).answered()
	}, masquerading(podA, podB))
}

// An uplink without an address of the family: a counted drop, never the pod's address.
func TestPrivilegedMasqueradeNoAddress(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		w.put("sl_uplinks", uint32(w.index("upl0")), &bpfgen.TypesSlUplink{
			Src4: codec.Addr(unspecified(4)), Src6: codec.Addr(unspecified(6)),
		})
		j.refused("S", wantDrop(reasonNoAddr, podA))
		w.put("sl_uplinks", uint32(w.index("upl0")), &bpfgen.TypesSlUplink{})
		j.refused("S", wantDrop(reasonNoAddr, podA))
		w.remove("sl_uplinks", uint32(w.index("upl0")))
		j.refused("S", wantDrop(reasonNoAddr, podA))
		w.wantFlows(0, 1)
	}, masquerading(podA))
}

// The LRU takes the index: the pod's next packet brings it back, by either path.
func TestPrivilegedMasqueradeLostIndex(t *testing.T) {
	fx := newFixture(t, nil)
	for _, port := range []struct{ own, seen uint16 }{{keptPort, keptPort}, {movedPort, rolled(5)}} {
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			w.rolls(5)
			j := w.opens(family, proto, podA, port.own, port.seen)
			j.out("S")
			w.evict(j.outside)
			j.out("S")
			j.in("SA")
			j.outFast("A")
			w.evict(j.outside)
			j.outFast("PA")
			j.inFast("PA")
			w.wantIndex(proven, j.outside, j.inside)
			w.wantFlows(2, 0)
		}, masquerading(podA))
	}
}

// The LRU takes the record: the next answer brings it back from the index.
func TestPrivilegedMasqueradeLostRecord(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(5)
		j := w.opens(family, proto, podA, movedPort, rolled(5))
		j.answered()
		w.evict(j.inside)
		j.in("PA")
		table, flags := proven, flowPodOpened|flowSNAT|flowReplied|flowAssured|flowRXFirst|flowRXConfirm
		if proto == tcp { // nothing shows that the packet continues the connection before the pod has spoken
			table, flags = unproven, flags&^flowAssured
		}
		f := w.wantFlow(table, j.inside, flags)
		if f.Other != j.outside.tuple() || f.Owner != podA.owner {
			t.Errorf("restored record: %+v", f)
		}
		j.out("PA")
		j.inFast("PA")
		j.outFast("PA")
		w.wantFlows(2, 0)
	}, masquerading(podA))
}

// The record is lost and the pod speaks first: a port that was kept stays the same.
func TestPrivilegedMasqueradeLostRecordKeptPort(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		w.evict(j.inside)
		j.out("PA")
		j.in("PA")
		if proto == tcp {
			j.out("PA") // from_pod makes no record of a connection it has not seen open
		} else {
			j.outFast("PA")
		}
		j.inFast("PA")
		j.outFast("PA")
	}, masquerading(podA))
}

// Both halves lost: what comes in has no owner, what goes out is masqueraded anew.
func TestPrivilegedMasqueradeLostWhole(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		w.evict(j.inside)
		w.evict(j.outside)
		j.ignored("PA")
		w.wantFlows(0, 0)
		j.out("PA")
		j.in("PA")
	}, masquerading(podA))
}

// The way back was given to another flow: the first one gets a new port,
// and never the other's packets.
func TestPrivilegedMasqueradeIndexTaken(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(7)
		a := w.opens(family, proto, podA, keptPort, keptPort)
		b := w.opens(family, proto, podB, keptPort, keptPort)
		a.answered()
		w.evict(a.outside)
		b.out("S") // no entry says that the port is taken
		b.in("SA")
		a.outside = a.outside.as(at(upl0.addr(family), rolled(7)))
		a.out("PA")
		a.in("PA")
		b.outFast("PA")
		b.inFast("PA")
	}, masquerading(podA, podB))
}

// Another CPU takes the port between our looking and our taking it: the insert is
// the lock, and the loser tries the next port.
func TestPrivilegedMasqueradeRace(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(7)
		other := w.opens(family, proto, podB, keptPort, keptPort)
		w.rival = bpfgen.TypesSlCtEntry{Other: other.inside.tuple(), Flags: flowIndex | flowSNAT | flowPodOpened, Owner: podB.owner}
		j := w.opens(family, proto, podA, keptPort, rolled(7))
		sent := j.inside.tx("S")
		sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
		b := w.step(podEgress, podA.name, sent.bytes(t), passes(sent.bytes(t)))
		w.fail = failMapRace
		j.leave("S", b, sent)
		w.fail = 0
		w.wantIndex(unproven, other.outside, other.inside)
		j.in("SA")
		j.outFast("PA")
	}, masquerading(podA, podB))
}

// A pod that was made anew under the old one's address and asks the same server
// from the same port: the old flow must not stand in its way.
func TestPrivilegedMasqueradeNewOwner(t *testing.T) {
	fx := newFixture(t, nil)
	for _, answered := range []bool{false, true} {
		for _, port := range []struct{ own, seen uint16 }{{keptPort, keptPort}, {movedPort, rolled(5)}} {
			t.Run(fmt.Sprintf("%d/answered %t", port.own, answered), func(t *testing.T) {
				eachProtocol(t, fx, func(w *walk, family, proto int) {
					w.rolls(5)
					newOwner(w.opens(family, proto, podA, port.own, port.seen), answered)
				}, masquerading(podA))
			})
		}
	}
}

func newOwner(j *journey, answered bool) {
	j.tb.Helper()
	if answered {
		j.answered()
	} else {
		j.out("S")
	}
	j.endpoint(podA, 0xa2, epMasquerade)
	j.ignored("PA") // the old flow's answers are not for the new pod
	j.out("S")
	j.in("SA")
	j.outFast("PA")
	j.inFast("PA")
}

// Another CPU has inserted its reverse entry, and not yet the outside tuple into its entry: the port is taken. A claim
// that leads nowhere for longer than that can last is of a connection that is over.
func TestPrivilegedMasqueradeFreshClaim(t *testing.T) {
	fx := newFixture(t, nil)
	for _, test := range []struct {
		name string
		age  time.Duration
		seen uint16
	}{
		{"at once", 0, rolled(7)}, {"written after we read the clock", -time.Millisecond, rolled(7)},
		{"its CPU lost the time slice", 900 * time.Millisecond, rolled(7)}, {"over", 1100 * time.Millisecond, keptPort},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				w.rolls(7)
				w.later(time.Hour)
				other := w.opens(family, proto, podB, keptPort, keptPort)
				created := w.clock - uint64(test.age)
				w.put("sl_ct_unassured", other.inside.tuple(), &bpfgen.TypesSlCtEntry{
					Flags: flowPodOpened | flowTXFirst, Owner: podB.owner, Created: created, LastSeen: w.clock,
				})
				claim := bpfgen.TypesSlCtEntry{
					Other: other.inside.tuple(), Flags: flowIndex | flowSNAT | flowPodOpened, Owner: podB.owner, Created: created,
				}
				w.put("sl_ct_unassured", other.outside.tuple(), &claim)
				w.opens(family, proto, podA, keptPort, test.seen).answered()
				if test.seen != keptPort {
					w.wantIndex(unproven, other.outside, other.inside)
				}
			}, masquerading(podA, podB))
		})
	}
}

// Half of the ports are in use, in long runs: the search does not stay in the run where it begins.
func TestPrivilegedMasqueradeRunsOfPorts(t *testing.T) {
	const first, ports, run = 20000, 8000, 200
	fx := newFixture(t, map[string]uint32{
		"cfg_snat_min1": first, "cfg_snat_max1": first + ports - 1, "cfg_snat_min2": 0, "cfg_snat_max2": 0, "cfg_snat_secret": 77,
	})
	fx.each(t, "udp4", func(w *walk) {
		for at := first; at < first+ports; at += 2 * run {
			w.keepPorts(at, at+run-1)
		}
		var refused int
		for port := range uint16(run) { // each of them in use
			if !w.opens(4, udp, podA, first+port, 0).sends("S") {
				refused++
			}
		}
		if refused > run/50 { // a step may fit the runs
			t.Errorf("%d of %d connections found no port", refused, run)
		}
	}, masquerading(podA))
}
