// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// onDevice says that a pod's addresses are behind a device: one that is not there is what the datapath knows of a pod whose
// device was deleted by plugins that know nothing of it.
func (w *walk) onDevice(p *pod, ifindex int) {
	w.tb.Helper()
	w.changeEndpoint(p, func(_ int, v *bpfgen.TypesSlEndpoint) { v.Ifindex = uint32(ifindex) })
}

const gone = 1 << 30 // an ifindex that nothing has

func TestPrivilegedDeviceRemoved(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		w.onDevice(podA, gone)
		j.ignored("S")
		j.ignored("A")
		w.wantNoFlow(j.inside)

		w.onDevice(podA, w.index(podA.name))
		j.in("S")
		w.onDevice(podA, gone)
		w.later(recentHold)
		j.ignored("S") // sent again: the flow does not keep it

		// A client that never stops.
		w.onDevice(podA, w.index(podA.name))
		j.establish()
		j.inFast("PA")
		w.onDevice(podA, gone)
		w.later(recentHold)
		j.ignored("PA")
		j.ignored("PA")
	})
}

// A pod that asks for the port gets the other pod that publishes it.
func TestPrivilegedDeviceRemovedHairpin(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, 0, func(w *walk, family, proto int) {
		w.onDevice(podA, gone)
		c := w.toNode(family, proto, podC, podA, upl0.addr(family)).asked
		sent := c.tx("S")
		sent.srcMAC, sent.dstMAC = podC.mac, podC.gwMAC
		b := sent.bytes(t)
		w.step(podEgress, podC.name, b, passes(b))
		w.wantFlow(unproven, c, flowPodOpened|flowTXFirst)
	})
}
