// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// With the fast path off every packet goes by the stack, and is translated.
func TestPrivilegedFastPathOff(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": 0})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, movedPort, rolled(1))
		w.rolls(1)
		j.out("S")
		for range 3 {
			j.in("PA")
			j.out("PA")
		}
		p := w.talk(family, proto, podB, podC)
		p.slow("S")
		for range 3 {
			p.back().slow("PA")
			p.slow("PA")
		}
	}, masquerading(podA))
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.in("S")
		for range 3 {
			j.out("PA")
			j.in("PA")
		}
	})
}

const admitMark = 0x1000

// What an admitted pod sends, the answers to it and what comes through its hostPorts carry the mark; bits of others stay.
func TestPrivilegedAdmitMark(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_admit_mark": admitMark})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.mark = admitMark
		sent := j.inside.tx("S")
		sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
		want := passes(sent.bytes(t))
		want.mark = 0x5 | admitMark
		w.stepInput(podEgress, podA.name, input{data: sent.bytes(t), mark: 0x5}, want)
		j.answered()

		k := w.plain(family, proto, podB, keptPort)
		k.answered() // a pod that is not admitted

		if proto != echo {
			k = w.toHostPort(family, proto, podA)
			k.mark = admitMark
			k.establish()
		}
		// What third parties open to the pod's own address is not admitted by us, the pod's answers are.
		in := w.inbound(family, proto, podA)
		in.inside.remote, in.outside.remote = at(client(family), 50000), at(client(family), 50000)
		in.in("S")
		in.mark = admitMark
		in.out("SA")
	}, admitting(epMasquerade, podA), func(w *walk) {
		for _, family := range families {
			w.publish(mapping(family, tcp, podA))
			w.publish(mapping(family, udp, podA))
		}
	})
}

// No mark is configured: none is set.
func TestPrivilegedNoMark(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.opens(family, proto, podA, keptPort, keptPort).answered()
	}, admitting(epMasquerade, podA))
}

// The last hop, and packets that do not fit, are the stack's.
func TestPrivilegedFastPathOdd(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		sent, arrived, translated := j.inside.tx("PA"), j.outside.rx("PA"), j.inside.rx("PA")
		sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
		arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
		translated.srcMAC, translated.dstMAC = upl0.router, upl0.mac
		for _, ttl := range []uint8{0, 1} {
			sent.ttl, arrived.ttl, translated.ttl = ttl, ttl, ttl
			w.step(podEgress, podA.name, sent.bytes(t), passes(sent.bytes(t)))
			w.step(uplIngress, upl0.name, arrived.bytes(t), passes(translated.bytes(t)))
		}
		headers := map[int]int{tcp: 20, udp: 8, echo: 8}[proto] + pick(family, 20, 40)
		j.size = podMTU - headers + 1 // just fits
		j.outFast("PA")
		j.inFast("PA")
		j.size++
		j.out("PA")
		j.in("PA")
		j.size = 0
		j.outFast("PA")
		j.inFast("PA")
	}, masquerading(podA))
}

// A GSO packet is as big as its segments.
func TestPrivilegedFastPathGSO(t *testing.T) {
	fx := newFixture(t, nil)
	fx.modes = fx.modes[:1]
	for _, family := range families {
		for _, p := range protocols[:2] {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				j := w.opens(family, p.proto, podA, keptPort, keptPort)
				j.answered()
				headers := map[int]int{tcp: 20, udp: 8}[p.proto] + pick(family, 20, 40)
				j.size = 3000
				gso(j, uint32(podMTU-headers), true)
				gso(j, uint32(podMTU-headers+1), false)
			}, masquerading(podA))
		}
	}
}

// gso sends a packet of several segments both ways.
func gso(j *journey, segment uint32, fast bool) {
	j.tb.Helper()
	sent := j.dress(j.inside.tx("PA"))
	sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
	want := passes(sent.bytes(j.tb))
	if fast {
		want = j.byFastPath("PA", len(want.out)-ethLen-(j.size-1)+int(segment))
	}
	j.stepInput(podEgress, j.pod.name, input{data: sent.bytes(j.tb), gsoSize: segment}, want)

	arrived, got := j.dress(j.outside.rx("PA")), j.dress(j.inside.rx("PA"))
	arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
	got.srcMAC, got.dstMAC = j.up.router, j.up.mac
	want = passes(got.bytes(j.tb))
	if fast {
		want = toPeer(j.pod, got.routed(j.pod.gwMAC, j.pod.mac).bytes(j.tb))
	}
	j.stepInput(uplIngress, j.up.name, input{data: arrived.bytes(j.tb), gsoSize: segment}, want)
}

// routeHold is how long a flow's last way out holds (SL_NEXTHOP_TTL).
const routeHold = 10 * time.Millisecond

// The route moves to the other uplink: the flow gets an outside tuple of that one and is learned anew. What still comes
// for the old tuple is no longer its own. It moves back in the same way.
func TestPrivilegedRouteChange(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		j.outFast("PA")
		w.rerouted(netip.PrefixFrom(client(family), pick(family, 32, 128)), upl1, family, func() {
			j.outFast("PA") // its last way holds for 10 ms
			w.later(routeHold)
			old := j.outside
			j.up, j.outside = upl1, j.inside.as(at(upl1.addr(family), keptPort))
			j.out("PA")
			f := j.wantFlow(unproven, j.inside, flowPodOpened|flowSNAT|flowTXFirst|flowTXConfirm)
			if int(f.OutIfindex) != w.index(upl1.name) || f.Other != j.outside.tuple() {
				t.Errorf("after the route has moved: %+v", f)
			}
			j.wantIndex(unproven, j.outside, j.inside)
			j.wantFlows(0, 2)
			moved := *j
			moved.up, moved.outside = upl0, old
			moved.ignored("PA")
			j.in("PA")
			j.outFast("PA")
			j.inFast("PA")
			j.wantFlows(2, 0)
			j.up = upl0
			j.inFast("PA") // answers may come in by either uplink
		})
		w.later(routeHold)
		j.outside = j.inside.as(at(upl0.addr(family), keptPort))
		j.out("PA")
		j.in("PA")
		j.outFast("PA")
		j.inFast("PA")
	}, masquerading(podA))
}

// A packet leaves as the flow's last one did for a while: the stack's, if it is no longer than that one, or one that asked the
// FIB, if the route's MTU allows it. The first one after that goes by way of the neighbour, and every one whose neighbour is not known.
func TestPrivilegedRouteHeld(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		held := func(j *journey, want bool) {
			w.tb.Helper()
			if f := j.record(); (w.clock < f.NexthopUntil) != want {
				w.tb.Fatalf("a way is held: %t, want %t: %+v", !want, want, f)
			}
		}
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		w.later(routeHold)
		held(j, false)
		j.outFast("PA")
		held(j, true)
		mtu := podMTU // the route's
		if !kernelAtLeast(w.tb, 5, 12) {
			sent := j.inside.tx("PA")
			sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
			mtu = len(sent.bytes(w.tb)) - ethLen
		}
		if got := int(j.record().NexthopLen); got != mtu {
			w.tb.Errorf("holds for packets of up to %d bytes, want %d", got, mtu)
		}
		w.later(routeHold - 1)
		held(j, true)
		j.outFast("PA")
		w.later(1)
		held(j, false)
		j.outFast("PA")
		held(j, true)

		// By the stack: it holds for what is no longer.
		w.later(routeHold)
		j.size = 100
		sent := j.dress(j.inside.tx("PA"))
		sent.srcMAC, sent.dstMAC, sent.ttl = podA.mac, podA.gwMAC, 1 // the last hop: not by the fast path
		b := w.step(podEgress, podA.name, sent.bytes(w.tb), passes(sent.bytes(w.tb)))
		left := j.dress(j.outside.tx("PA"))
		left.srcMAC, left.dstMAC, left.ttl = upl0.mac, upl0.router, 1
		copy(b, append(append([]byte{}, upl0.router...), upl0.mac...))
		w.step(uplEgress, upl0.name, b, passes(left.bytes(w.tb)))
		held(j, true)
		if got := int(j.record().NexthopLen); got != len(b)-ethLen {
			w.tb.Errorf("holds for packets of up to %d bytes, want %d", got, len(b)-ethLen)
		}
		j.outFast("PA")
		if got := int(j.record().NexthopLen); got != len(b)-ethLen {
			w.tb.Errorf("has asked again, though it held: up to %d bytes, want %d", got, len(b)-ethLen)
		}
		j.size++
		j.outFast("PA") // longer: asks
		if got := int(j.record().NexthopLen); got <= len(b)-ethLen {
			w.tb.Errorf("holds for packets of up to %d bytes after a longer one", got)
		}

		// The router is not known: every packet has to make the kernel ask for it.
		w.later(routeHold)
		if err := w.do(func() error { return w.know(upl0, false) }); err != nil {
			w.tb.Fatal(err)
		}
		for range 2 {
			j.out("PA")
			w.later(routeHold)
		}
		if err := w.do(func() error { return w.know(upl0, true) }); err != nil {
			w.tb.Fatal(err)
		}
	}, masquerading(podA))
}

// A destination that became unreachable: the stack says so.
func TestPrivilegedRouteGone(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		w.rerouted(netip.PrefixFrom(client(family), pick(family, 32, 128)), nil, family, func() {
			w.later(routeHold)
			sent := j.inside.tx("PA")
			sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
			w.step(podEgress, podA.name, sent.bytes(t), passes(sent.bytes(t)))
		})
		j.outFast("PA")
	}, masquerading(podA))
}

// rerouted runs f while dst is routed by another uplink, or nowhere.
func (w *walk) rerouted(dst netip.Prefix, u *uplink, family int, f func()) {
	w.tb.Helper()
	r := rtnl.Route{Dst: dst, Type: 7} // RTN_UNREACHABLE
	if u != nil {
		r = rtnl.Route{Dst: dst, LinkIndex: w.index(u.name), Gateway: u.gateway(family)}
	}
	change := func(add bool) {
		err := w.do(func() error {
			h, err := rtnl.New()
			if err != nil {
				return err
			}
			defer h.Close()
			if add {
				return h.AddRoute(r)
			}
			return h.DelRoute(r)
		})
		if err != nil {
			w.tb.Fatal(err)
		}
	}
	change(true)
	defer change(false)
	f()
}
