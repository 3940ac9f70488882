// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
)

// A Service address that netfilter translates between our hooks: the pod's hook
// sees the virtual address, the uplink's the backend.
func TestPrivilegedVIP(t *testing.T) {
	fx := newFixture(t, nil)
	for _, port := range []struct{ own, seen uint16 }{{keptPort, keptPort}, {movedPort, rolled(4)}} {
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			w.rolls(4)
			backend := w.opens(family, proto, podA, port.own, port.seen)
			vip := backend.inside
			vip.remote = at(pick(family, ip("10.96.0.10"), ip("fd00:96::a")), 53)

			for i, kinds := range [][2]string{{"S", "SA"}, {"A", "PA"}, {"PA", "PA"}, {"PA", "PA"}, {"FA", "FA"}, {"A", "A"}} {
				backend.viaVIP(vip, kinds[0])
				backend.answerViaVIP(vip, kinds[1])
				if i > 0 && i < 4 {
					w.wantFlow(unproven, vip, flowPodOpened|flowTXFirst)
					w.wantFlow(proven, backend.inside, flowPodOpened|flowSNAT|flowReplied|flowAssured|flowRXFirst)
				}
			}
			w.wantIndex(proven, backend.outside, backend.inside)
		}, masquerading(podA))
	}
}

// viaVIP sends a packet of the pod to a virtual address, which the stack makes the
// journey's remote end.
func (j *journey) viaVIP(vip conn, kind string) {
	j.tb.Helper()
	sent := vip.tx(kind)
	sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
	j.step(podEgress, j.pod.name, sent.bytes(j.tb), passes(sent.bytes(j.tb)))
	forwarded := j.inside.tx(kind).routed(j.up.mac, j.up.router)
	j.step(uplEgress, j.up.name, forwarded.bytes(j.tb), passes(j.left(kind, sent).bytes(j.tb)))
}

// answerViaVIP brings the backend's answer, which the stack makes one of the virtual address.
func (j *journey) answerViaVIP(vip conn, kind string) {
	j.tb.Helper()
	arrived, translated := j.outside.rx(kind), j.inside.rx(kind)
	arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
	translated.srcMAC, translated.dstMAC = j.up.router, j.up.mac
	j.step(uplIngress, j.up.name, arrived.bytes(j.tb), passes(translated.bytes(j.tb)))
	got := vip.rx(kind).routed(j.pod.gwMAC, j.pod.mac)
	j.step(podIngress, j.pod.name, got.bytes(j.tb), passes(got.bytes(j.tb)))
}

// A backend on this node: the other pod gets the packet with a tuple of its own.
func TestPrivilegedVIPLocalBackend(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		p := w.talk(family, proto, podA, podC)
		vip := p.conn
		vip.remote = at(pick(family, ip("10.96.0.10"), ip("fd00:96::a")), p.remote.Port())
		for range 4 {
			sent := vip.tx("PA")
			sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
			w.step(podEgress, podA.name, sent.bytes(t), passes(sent.bytes(t)))
			got := p.tx("PA").routed(podC.gwMAC, podC.mac)
			w.step(podIngress, podC.name, got.bytes(t), passes(got.bytes(t)))

			answer := p.rx("PA")
			answer.srcMAC, answer.dstMAC = podC.mac, podC.gwMAC
			w.step(podEgress, podC.name, answer.bytes(t), passes(answer.bytes(t)))
			back := vip.rx("PA").routed(podA.gwMAC, podA.mac)
			w.step(podIngress, podA.name, back.bytes(t), passes(back.bytes(t)))
		}
	}, masquerading(podA), oneNetwork)
}

// A third party sends what comes through a hostPort on to another pod: both ways
// stay slow, and the client sees the address it asked for.
func TestPrivilegedHostPortSentOn(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		other := j.inside.as(at(podB.addr(family), podPort))
		for _, kinds := range [][2]string{{"S", "SA"}, {"A", "PA"}, {"PA", "PA"}, {"PA", "PA"}} {
			arrived, translated := j.outside.rx(kinds[0]), j.inside.rx(kinds[0])
			arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
			translated.srcMAC, translated.dstMAC = upl0.router, upl0.mac
			w.step(uplIngress, "upl0", arrived.bytes(t), passes(translated.bytes(t)))
			got := other.rx(kinds[0]).routed(podB.gwMAC, podB.mac)
			w.step(podIngress, podB.name, got.bytes(t), passes(got.bytes(t)))

			answer := other.tx(kinds[1])
			answer.srcMAC, answer.dstMAC = podB.mac, podB.gwMAC
			w.step(podEgress, podB.name, answer.bytes(t), passes(answer.bytes(t)))
			forwarded, left := j.inside.tx(kinds[1]), j.outside.tx(kinds[1])
			w.step(uplEgress, "upl0", forwarded.routed(upl0.mac, upl0.router).bytes(t),
				passes(left.routed(upl0.mac, upl0.router).bytes(t)))
		}
	})
}
