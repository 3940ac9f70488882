// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"testing"
)

// clientFixture has upl0 as a device with clients on this node. The fast path is not off, as it is where the loader makes these programs: even
// so nothing of theirs may take it.
func clientFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, map[string]uint32{"cfg_clients": 1, "cfg_cb_cookie1": cbWords[0], "cfg_cb_cookie2": cbWords[1]})
}

// asks brings a client's packet to the pod.
func (j *journey) asks(kind string) {
	j.tb.Helper()
	arrived, translated := j.received(kind)
	j.arrives(input{data: arrived}, translated, true)
	b := route(translated, j.pod.gwMAC, j.pod.mac)
	j.step(podIngress, j.pod.name, b, passes(b))
}

// A client behind the device reaches a hostPort, and never by the fast path. Netfilter gets each of its packets once more, translated.
func TestPrivilegedClient(t *testing.T) {
	fx := clientFixture(t)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.asks("S")
		j.out("SA")
		j.asks("A")
		for range 3 {
			j.asks("PA")
			j.out("PA")
		}
		w.wantFlow(proven, j.inside, flowDNAT|flowDNATAny|flowRXFirst|flowRXConfirm|flowTXFirst|flowReplied|flowAssured)
		before, after := j.toNode(icmpKinds[0], 0, "PA")
		j.arrives(input{data: before.bytes(w.tb)}, after.bytes(w.tb), true)
		j.size = 201
		arrived, translated := j.received("PA")
		parts := fragments(translated, 3)
		for i, b := range fragments(arrived, 3) {
			j.arrives(input{data: b}, parts[i], true)
		}
		sent := j.dress(j.inside.tx("PA"))
		sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
		left := fragments(j.left("PA", sent).bytes(w.tb), 3)
		for i, b := range fragments(route(sent.bytes(w.tb), j.up.mac, j.up.router), 3) {
			j.step(uplEgress, j.up.name, b, passes(left[i]))
		}
	})
}

// Whatever else comes by the device stays as it is: what pods with programs send, what is for a pod's own address, what a masqueraded pod
// opens or sends that nobody can read.
func TestPrivilegedClientNot(t *testing.T) {
	fx := clientFixture(t)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.inbound(family, proto, podA)
		j.ignored("S")
		raw := w.leaving(family, proto)
		unreadable := bytes.Clone(raw)
		unreadable[pick(family, ethLen+9, ethLen+6)] = 136 // UDP-Lite
		if family == 4 {
			fixIPv4Sum(unreadable)
		}
		for _, b := range [][]byte{raw, fragments(raw, 2)[1], unreadable} {
			w.step(uplEgress, upl0.name, b, untouched(b))
		}
		j = w.opens(family, proto, podA, keptPort, keptPort)
		j.ignored("SA")
		w.wantFlows(0, 0)
		if proto == echo {
			return
		}
		j = w.toHostPort(family, proto, podA)
		j.outside.remote = at(podB.addr(family), clientPort)
		j.ignored("S")
		w.wantFlows(0, 0)
	}, masquerading(podA), masquerading(podB), publishing(mapping(4, tcp, podA), mapping(4, udp, podA), mapping(6, tcp, podA), mapping(6, udp, podA)))
}
