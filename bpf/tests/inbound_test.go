// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"
)

// byOtherDevice brings a packet to the pod that came in by no uplink.
func (j *journey) byOtherDevice(kind string) {
	j.tb.Helper()
	f := j.dress(j.inside.rx(kind))
	f.srcMAC, f.dstMAC = j.pod.gwMAC, j.pod.mac
	b := f.bytes(j.tb)
	j.step(podIngress, j.pod.name, b, passes(b))
}

// A connection to the pod's own address that came in by a device that is no uplink: what answers it by an uplink keeps that address,
// after any pause. So does a datagram.
func TestPrivilegedInboundByOtherDevice(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.inbound(family, proto, podA)
		j.byOtherDevice("S")
		w.wantFlow(unproven, j.inside, 0)
		j.out("SA")
		j.byOtherDevice("A")
		w.wantFlow(proven, j.inside, flowTXFirst|flowTXConfirm|flowReplied|flowAssured)
		j.out("PA")
		j.byOtherDevice("PA")
		w.later(2 * time.Minute)
		j.out("PA")
		w.wantFlows(1, 0)
	}, masquerading(podA))
	// Neither a process of the node nor a pod without masquerade needs an entry.
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.inbound(family, proto, podA)
		j.inside.remote = at(upl0.addr(family), clientPort)
		j.byOtherDevice("S")
		w.inbound(family, proto, podB).byOtherDevice("S")
		w.wantFlows(0, 0)
	}, masquerading(podA))
}

// Nor does such a SYN end a connection that the pod has opened.
func TestPrivilegedInboundByOtherDeviceLive(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.answered()
			j.byOtherDevice("S")
			j.outFast("PA")
			j.inFast("PA")
		}, masquerading(podA))
	}
}

// A masqueraded pod answers what nobody has asked: that does not leave, and what follows leaves with the node's address.
func TestPrivilegedMasqueradeUnasked(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		if proto == udp {
			return // an answer looks like a question
		}
		j := w.opens(family, proto, podA, keptPort, keptPort)
		unasked := *j
		unasked.inside.remoteAsks = true
		for range 2 {
			unasked.refused("SA", wantDrop(reasonUnasked, podA))
		}
		w.wantFlows(0, 0)
		j.out("PA")
		j.in("PA")
	}, masquerading(podA))
}
