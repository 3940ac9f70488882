// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// slowPath brings a packet through both doors in an odd shape: make turns a frame into what is sent, in its order.
func (t *hairpinConn) slowPath(make func([]byte) [][]byte, asks bool) {
	t.tb.Helper()
	from, to, dir := t.client, t.pod, conn.tx
	first, last := t.asked, t.seen
	if !asks {
		from, to, dir = t.pod, t.client, conn.rx
		first, last = t.seen, t.asked
	}
	shape := func(c conn) [][]byte {
		f := dir(c, "PA")
		f.srcMAC, f.dstMAC = from.mac, from.gwMAC
		f.payload = slices.Repeat([]byte("0123456789"), 20)
		return make(f.bytes(t.tb))
	}
	sent, middle, got := shape(first), shape(t.middle), shape(last)
	for i, b := range sent {
		b = t.step(podEgress, from.name, b, passes(middle[i]))
		t.step(podIngress, to.name, route(b, to.gwMAC, to.mac), passes(route(got[i], to.gwMAC, to.mac)))
	}
}

// errs brings an ICMP error about a packet that its sender got: from the pod, or from the client.
func (t *hairpinConn) errs(kind icmpKind, keep int, byPod bool) {
	t.tb.Helper()
	from, to, dir := t.client, t.pod, conn.rx
	first, last := t.asked, t.seen
	if byPod {
		from, to, dir = t.pod, t.client, conn.tx
		first, last = t.seen, t.asked
	}
	about := func(c conn) icmpError {
		f := dir(c, "PA")
		e := icmpError{srcMAC: from.mac, dstMAC: from.gwMAC, src: f.dst.Addr(), dst: f.src.Addr(), ttl: 65, kind: kind, keep: keep, about: f}
		return e
	}
	sent, middle, got := about(first), about(t.middle), about(last)
	b := t.step(podEgress, from.name, sent.bytes(t.tb), passes(middle.bytes(t.tb)))
	got.ttl--
	got.srcMAC, got.dstMAC = to.gwMAC, to.mac
	t.step(podIngress, to.name, route(b, to.gwMAC, to.mac), passes(got.bytes(t.tb)))
}

// errsNode is what the node says to the sender of a packet that does not get there.
func (t *hairpinConn) errsNode(kind icmpKind, keep int, toPod bool) {
	t.tb.Helper()
	to, dir, seen := t.client, conn.tx, t.asked
	if toPod {
		to, dir, seen = t.pod, conn.rx, t.seen
	}
	e := icmpError{srcMAC: to.gwMAC, dstMAC: to.mac, dst: to.addr(t.family()), ttl: 64, kind: kind, keep: keep}
	e.src = to.gateway(t.family())
	e.about = dir(t.middle, "PA")
	after := e
	after.about = dir(seen, "PA")
	t.step(podIngress, to.name, e.bytes(t.tb), passes(after.bytes(t.tb)))
}

func (t *hairpinConn) family() int {
	if t.asked.local.Addr().Is6() {
		return 6
	}
	return 4
}

// hairpins are a hairpin with and without pod-side SNAT to the gateway's address, by "snat" and by "masqAll", and a connection between
// two networks.
func hairpins(t *testing.T, fx *fixture, f func(x *hairpinConn)) {
	t.Helper()
	for _, family := range families {
		for _, p := range protocols {
			gateway := publishTo(family, protoSCTP, podB, 0)
			fx.each(t, fmt.Sprintf("between/%s%d", p.name, family), func(w *walk) {
				f(w.between(family, p.proto, podA, podC, keptPort))
			}, masquerading(podA, podC), gateway)
			if p.proto == echo {
				continue
			}
			fx.each(t, fmt.Sprintf("masked/%s%d", p.name, family), func(w *walk) {
				f(w.toNode(family, p.proto, podB, podA, upl0.addr(family)).masked(keptPort))
			}, publishTo(family, p.proto, podA, hpSNAT))
			fx.each(t, fmt.Sprintf("itself/%s%d", p.name, family), func(w *walk) {
				f(w.toNode(family, p.proto, podA, podA, upl0.addr(family)).masked(keptPort))
			}, publishTo(family, p.proto, podA, hpSNAT))
			fx.each(t, fmt.Sprintf("plain/%s%d", p.name, family), func(w *walk) {
				f(w.toNode(family, p.proto, podC, podA, upl0.addr(family)))
			}, publishTo(family, p.proto, podA, hpSNAT))
			fx.each(t, fmt.Sprintf("masqAll/%s%d", p.name, family), func(w *walk) {
				f(w.toNode(family, p.proto, podC, podA, upl0.addr(family)).masked(keptPort))
			}, publishTo(family, p.proto, podA, hpSNAT|hpMasqAll))
			fx.each(t, fmt.Sprintf("without SNAT/%s%d", p.name, family), func(w *walk) {
				f(w.toNode(family, p.proto, podB, podA, upl0.addr(family)))
			}, publishTo(family, p.proto, podA, 0))
		}
	}
}

// Fragments behind the first in any order; the flow goes on as it was.
func TestPrivilegedHairpinFragments(t *testing.T) {
	fx := newFixture(t, nil)
	hairpins(t, fx, func(x *hairpinConn) {
		x.asks("S")
		x.answers("SA")
		for _, n := range []int{2, 4} {
			shuffled := func(raw []byte) [][]byte {
				all := fragments(raw, n)
				slices.Reverse(all[1:])
				return all
			}
			x.slowPath(shuffled, true)
			x.slowPath(shuffled, false)
		}
		x.asks("PA")
		x.answers("PA")
	})
}

// A connection may begin with a fragment; a later one without its first stays as it is, as do all when the first was too long ago.
func TestPrivilegedHairpinFragmentsFirst(t *testing.T) {
	fx := newFixture(t, nil)
	hairpins(t, fx, func(x *hairpinConn) {
		if x.asked.proto != udp {
			return
		}
		shape := func(raw []byte) [][]byte { return fragments(raw, 3) }
		orphans := func() {
			f := x.asked.tx("")
			f.srcMAC, f.dstMAC, f.payload = x.client.mac, x.client.gwMAC, make([]byte, 200)
			for _, b := range shape(f.bytes(t))[1:] {
				x.step(podEgress, x.client.name, b, passes(b))
			}
		}
		orphans()
		x.slowPath(shape, true)
		x.slowPath(shape, false)
		x.later(30 * time.Second)
		orphans()
	})
}

// Errors find their way back through what was turned, inside and outside.
func TestPrivilegedHairpinErrors(t *testing.T) {
	fx := newFixture(t, nil)
	hairpins(t, fx, func(x *hairpinConn) {
		x.asks("S")
		x.answers("SA")
		eachError(x.family(), func(kind icmpKind, keep int) {
			for _, side := range []bool{true, false} {
				x.errs(kind, keep, side)
				x.errsNode(kind, keep, side)
			}
		})
		x.asks("PA")
		x.answers("PA")
	})
}

// A pod without a socket for the first packet says so before any answer, and so does the node of a packet that is too big.
func TestPrivilegedHairpinErrorsFirst(t *testing.T) {
	fx := newFixture(t, nil)
	hairpins(t, fx, func(x *hairpinConn) {
		x.asks("S")
		eachError(x.family(), func(kind icmpKind, keep int) {
			x.errs(kind, keep, true)
			x.errsNode(kind, keep, false)
		})
		x.answers("SA")
		x.asks("PA")
	})
}

// A later fragment that comes before the first has no note: it stays as it is, and the first makes the note for those behind it.
func TestPrivilegedHairpinFragmentsOutOfOrder(t *testing.T) {
	fx := newFixture(t, nil)
	hairpins(t, fx, func(x *hairpinConn) {
		x.asks("S")
		x.answers("SA")
		for _, asks := range []bool{true, false} {
			from, c, dir := x.client, x.asked, conn.tx
			if !asks {
				from, c, dir = x.pod, x.seen, conn.rx
			}
			f := dir(c, "PA")
			f.srcMAC, f.dstMAC = from.mac, from.gwMAC
			f.payload = slices.Repeat([]byte("0123456789"), 20)
			early := fragments(f.bytes(t), 4)[3]
			x.step(podEgress, from.name, early, passes(early))
			x.slowPath(func(raw []byte) [][]byte { return fragments(raw, 4)[:3] }, asks)
			x.slowPath(func(raw []byte) [][]byte { return fragments(raw, 4)[:1] }, asks) // the note is the newest datagram's
		}
		x.asks("PA")
		x.answers("PA")
	})
}

// Errors about connections that are no hairpin stay as they are.
func TestPrivilegedHairpinErrorsUntouched(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		p := w.talk(family, proto, podA, podB)
		p.establish()
		x := &hairpinConn{walk: w, client: podA, pod: podB, asked: p.conn, middle: p.conn, seen: p.conn}
		eachError(family, func(kind icmpKind, keep int) {
			x.errs(kind, keep, true)
			x.errs(kind, keep, false)
			x.errsNode(kind, keep, true)
		})
	})
}

// SCTP through a hairpin keeps its ports; a mapping with another one is none for the datapath.
func TestPrivilegedHairpinSCTP(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		m := mapping(family, protoSCTP, podA)
		m.port = hostPort
		fx.each(t, fmt.Sprintf("same port %d", family), func(w *walk) {
			x := w.toNode(family, udp, podC, podA, upl0.addr(family))
			x.middle.remote, x.seen.remote = at(podA.addr(family), hostPort), at(podA.addr(family), hostPort)
			for range 2 {
				x.slowPath(bare(protoSCTP), true)
				x.slowPath(bare(protoSCTP), false)
			}
		}, publishing(m))
		m.port = podPort
		fx.each(t, fmt.Sprintf("other port %d", family), func(w *walk) {
			f := w.toNode(family, udp, podC, podA, upl0.addr(family)).asked.tx("")
			f.srcMAC, f.dstMAC = podC.mac, podC.gwMAC
			b := bare(protoSCTP)(f.bytes(t))[0]
			w.step(podEgress, podC.name, b, passes(b))
		}, publishing(m))
	}
}

// Protocols without ports that we change are masqueraded between networks too, one pod at a time.
func TestPrivilegedCrossNetworkBare(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, p := range bareProtocols {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				x := w.between(family, udp, podA, podC, keptPort)
				for range 2 {
					x.slowPath(bare(p.number), true)
					x.slowPath(bare(p.number), false)
				}
				f := w.between(family, udp, podB, podC, keptPort).asked.tx("")
				f.srcMAC, f.dstMAC = podC.gwMAC, podC.mac
				refused := wantDrop(reasonPorts, podC)
				w.step(podIngress, podC.name, bare(p.number)(f.bytes(t))[0], refused)
			}, masquerading(podA, podB, podC), publishTo(family, tcp, podB, 0))
		}
	}
}
