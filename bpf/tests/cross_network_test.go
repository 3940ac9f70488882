// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// between is a connection that a opens to b, a pod of another network of the node: b sees its gateway.
func (w *walk) between(family, proto int, a, b *pod, port uint16) *hairpinConn {
	c := conn{proto: proto, local: at(a.addr(family), keptPort), remote: at(b.addr(family), podPort)}
	return (&hairpinConn{walk: w, client: a, pod: b, asked: c, middle: c, seen: c}).masked(port)
}

// gateways lets the endpoints know them.
func gateways(w *walk) {
	for _, family := range families {
		publishTo(family, protoSCTP, podB, 0)(w)
	}
}

// ipMasq is for everything outside of the pod's own subnet, as upstream has it: also
// for another network of the node. None of it takes the fast path.
func TestPrivilegedCrossNetwork(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(1)
		ac := w.between(family, proto, podA, podC, keptPort)
		bc := w.between(family, proto, podB, podC, rolled(1)) // the gateway's port is taken by the first
		ca := w.between(family, proto, podC, podA, keptPort)
		ca.asked.local = at(podC.addr(family), keptPort-1)
		ca.middle.local = ca.asked.local
		ca.seen.local = at(podA.gateway(family), keptPort-1)
		for _, x := range []*hairpinConn{ac, bc, ca} {
			x.asks("S")
			x.answers("SA")
		}
		for range 3 {
			for _, x := range []*hairpinConn{ac, bc, ca} {
				x.answers("PA")
				x.asks("PA")
			}
		}
		// The opener is silent for longer than an opening may take, and its peer speaks first.
		w.later(100 * time.Second)
		ac.answers("PA")
		ac.asks("PA")
	}, masquerading(podA, podB, podC), gateways)
}

// A server that looks for a privileged port finds one. Of the other ports those are kept that the node does not give to its own connections to the pod.
func TestPrivilegedCrossNetworkPorts(t *testing.T) {
	fx := newFixture(t, nil)
	for _, proto := range []int{tcp, udp} {
		for _, family := range families {
			fx.each(t, fmt.Sprint(proto, family), func(w *walk) {
				w.rolls(1)
				for _, x := range []struct {
					pod       *pod
					own, seen uint16
				}{{podA, 700, 700}, {podB, 700, 602}, {podA, 123, 123}, {podB, 123, 3}, {podA, keptPort, keptPort}, {podA, 40001, rolled(1)}} {
					c := w.between(family, proto, x.pod, podC, x.seen)
					c.asked.local = at(x.pod.addr(family), x.own)
					c.middle.local = c.asked.local
					c.asks("S")
					c.answers("SA")
				}
			}, masquerading(podA, podB, podC), gateways)
		}
	}
}

// Another CPU is taking the gateway's port for another pod, as in TestPrivilegedMasqueradeFreshClaim.
func TestPrivilegedCrossNetworkFreshClaim(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(1)
		rival := w.between(family, proto, podB, podC, keptPort)
		key, outside := reversed(tupleOf(rival.middle)), reversed(tupleOf(rival.seen))
		if proto == echo { // whose ports are no ends
			return
		}
		key.Side = 1
		w.put("sl_ct_unassured", outside, &bpfgen.TypesSlCtEntry{
			Other: key, Flags: flowIndex | uint32(bpfgen.TypesSlCtFlagSL_CT_POD_SNAT), Owner: podC.owner, Created: w.clock,
		})
		w.between(family, proto, podA, podC, rolled(1)).asks("S")
	}, masquerading(podA, podB, podC), gateways)
}

// A SYN-ACK to nothing that the other pod sent does not show the pod's address either.
func TestPrivilegedCrossNetworkUnasked(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			w.between(family, tcp, podA, podC, keptPort).asks("SA")
		}, masquerading(podA), gateways)
	}
}

// Who is not masqueraded shows itself, and what answers it does so too.
func TestPrivilegedCrossNetworkHalf(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		p := w.talk(family, proto, podC, podA)
		p.establish()
		w.evict(p.back().conn)
		p.slow("PA")
		p.back().slow("PA")
		w.between(family, proto, podA, podC, keptPort).asks("S")
	}, masquerading(podA), gateways)
}

// A policy of either end keeps records of its own, which change nothing of that: not who is seen, nor who takes the fast path.
func TestPrivilegedCrossNetworkPoliced(t *testing.T) {
	fx := newFixture(t, nil)
	for _, p := range []*pod{podA, podC} {
		t.Run(p.name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				w.police(p, 7, policy.ModeIsolated, "")
				x := w.between(family, proto, podA, podC, keptPort)
				w.came = podA.route
				x.asks("S")
				w.came = podC.route
				x.answers("SA")
				for range 3 {
					w.came = podA.route
					x.asks("PA")
					w.came = podC.route
					x.answers("PA")
				}
			}, masquerading(podA, podC), gateways)
		})
	}
}

// The LRU may take all that one of the ends knows: no packet shows the pod's address, and the port stays where it can.
func TestPrivilegedCrossNetworkPolicedLost(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		if proto == echo { // whose keys are others, and which is the same to the code
			return
		}
		w.police(podA, 7, policy.ModeIsolated, "")
		x := w.between(family, proto, podA, podC, keptPort)
		w.came = podC.route
		x.asks("S")
		x.answers("SA")
		x.asks("PA")
		door := reversed(tupleOf(x.middle))
		door.Side = 1
		for _, lost := range [][]bpfgen.TypesSlTuple{
			{tupleOf(x.asked)}, {door}, {reversed(tupleOf(x.seen))}, {door, reversed(tupleOf(x.seen))},
		} {
			for _, key := range lost {
				w.lose(key)
			}
			x.asks("PA")
			x.answers("PA")
		}
	}, masquerading(podA, podC), gateways)
}

// What has been masqueraded on its way to another pod is not sent out as it is when that pod has gone.
func TestPrivilegedCrossNetworkGone(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeIsolated, "")
		x := w.between(family, proto, podA, podC, keptPort)
		w.came = podC.route
		x.asks("S")
		x.answers("SA")
		x.asks("PA")
		w.remove("sl_endpoints", codec.Addr(podC.addr(family)))
		j := &journey{walk: w, pod: podA, up: upl0, inside: x.asked, outside: x.asked.as(at(upl0.addr(family), keptPort))}
		j.out("PA")
	}, masquerading(podA, podC), gateways)
}

// No address in the other network, or no port: a counted drop, never the pod's address.
func TestPrivilegedCrossNetworkRefused(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		x := w.between(family, proto, podA, podC, keptPort)
		f := x.asked.tx("S")
		f.srcMAC, f.dstMAC = podC.gwMAC, podC.mac
		refused := wantDrop(reasonNoGateway, podC)
		w.step(podIngress, podC.name, f.bytes(t), refused)
		gateways(w)
		w.keepPorts(snatMin1, snatMax1)
		w.keepPorts(snatMin2, snatMax2)
		if proto != echo { // identifiers are not kept
			refused.reason = reasonPorts
			w.step(podIngress, podC.name, f.bytes(t), refused)
		}
	}, masquerading(podA))
}

// A masqueraded pod that asks a hostPort of another network is masqueraded on its way too.
func TestPrivilegedHairpinCrossNetwork(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, 0, func(w *walk, family, proto int) {
		x := w.toNode(family, proto, podC, podA, upl0.addr(family)).masked(keptPort)
		x.asks("S")
		x.answers("SA")
		for range 3 {
			x.asks("PA")
			x.answers("PA")
		}
	}, func(w *walk) {
		w.addEndpoint(podC, epMasquerade)
		gateways(w)
	})
}
