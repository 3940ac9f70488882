// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
)

// shape is a form in which a packet goes over the wire. The model of every shape is one
// sentence: the shape of the translated packet is the translation of the shape.
type shape struct {
	name string
	make func(raw []byte, n int) [][]byte // nil: not for this packet
	// untouched says that the datapath leaves the shape to others.
	untouched bool
}

var shapes = []shape{
	{name: "whole", make: func(raw []byte, _ int) [][]byte { return [][]byte{raw} }},
	{name: "fragments", make: func(raw []byte, n int) [][]byte {
		if n = 2 + n%5; len(raw)-read(raw).l4 < 24*(n-1)+1 {
			return nil
		}
		return fragments(raw, n)
	}},
	{name: "options", make: withHeaders},
	{name: "atomic fragment", make: func(raw []byte, n int) [][]byte {
		if isIPv4(raw) {
			return nil
		}
		return [][]byte{extension(44, 0, 0, 0, 0, byte(n), 2, 3, 4)(raw)}
	}},
	{name: "authentication", make: func(raw []byte, n int) [][]byte {
		if isIPv4(raw) {
			return nil
		}
		return [][]byte{extension(51, 0, 1, 0, 0, 0, 0, 0, byte(n), 0, 0, 0, 0)(raw)}
	}},
	{name: "VLAN", untouched: true, make: func(raw []byte, _ int) [][]byte { return [][]byte{vlan(0x8100)(raw)} }},
	{name: "QinQ", untouched: true, make: func(raw []byte, _ int) [][]byte { return [][]byte{vlan(0x88a8)(vlan(0x8100)(raw))} }},
}

// withHeaders gives IPv4 options, and IPv6 up to seven headers of options for each hop or the destination.
func withHeaders(raw []byte, n int) [][]byte {
	if isIPv4(raw) {
		return [][]byte{withIPOptions(raw, bytes.Repeat([]byte{1}, 4*(1+n%10)))}
	}
	for range 1 + n%7 {
		raw = extension(60, 0, 0, 1, 4, 0, 0, 0, 0)(raw)
	}
	if n&8 != 0 {
		raw = extension(0, 0, 0, 1, 4, 0, 0, 0, 0)(raw)
	}
	return [][]byte{raw}
}

// FuzzShapes sends a packet of a connection through the uplink, out and in, in every
// shape. The connection is one that a masqueraded pod opened, or one through a hostPort.
// Model: translating and shaping may change places, and a VLAN is left alone. More than
// seven extension headers are not read: what comes in so is the node's, and what leaves a
// masqueraded pod so is dropped and counted, since it would show the pod.
func FuzzShapes(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("a network namespace and BPF need root")
	}
	fx := newFixture(f, nil)
	opts := []option{masquerading(podA)}
	for _, family := range families {
		opts = append(opts, publishTo(family, tcp, podA, 0), publishTo(family, udp, podA, 0))
	}
	w := fx.walk(f, fx.modes[0], opts...)
	long := bytes.Repeat([]byte("0123456789"), 20)
	for family := range uint8(2) {
		for proto := range uint8(3) {
			for s := range shapes {
				f.Add(family, proto, uint8(s), uint8(s), uint16(movedPort+s), uint8(s), false, long)
				f.Add(family, proto, uint8(s), uint8(9+s), uint16(40000+s), uint8(2), true, long[:3*s])
			}
		}
	}
	f.Fuzz(func(t *testing.T, family, proto, which, n uint8, port uint16, remote uint8, hostPorts bool, payload []byte) {
		if len(payload) > 1200 {
			return
		}
		w.tb = t
		w.empty(proven) // an input says the same alone as behind others
		w.empty(unproven)
		fam, p := pick(int(family%2)*2+4, 4, 6), protocols[proto%3].proto
		if hostPorts && p != echo {
			shapedHostPort(w, fam, p, shapes[int(which)%len(shapes)], int(n), port, remote, payload)
			return
		}
		shapedMasquerade(w, fam, p, shapes[int(which)%len(shapes)], int(n), port, remote, payload)
	})
}

// shapedMasquerade opens a connection of podA, and goes on with shaped packets.
func shapedMasquerade(w *walk, family, proto int, s shape, n int, port uint16, remote uint8, payload []byte) {
	w.tb.Helper()
	p := fuzzed(family, proto, port, remote)
	p.frame = p.tx("S")
	p.srcMAC, p.dstMAC, p.ttl, p.payload = podA.mac, podA.gwMAC, 64, payload
	o := leaves(w, p)
	p.frame = p.tx("PA") // comesBack answers what was sent
	p.srcMAC, p.dstMAC, p.ttl, p.payload = podA.mac, podA.gwMAC, 64, payload
	comesBack(w, p, o)
	both(w, s, n, p.conn, o, payload)
}

// shapedHostPort is the same of a client that asks a hostPort.
func shapedHostPort(w *walk, family, proto int, s shape, n int, port uint16, remote uint8, payload []byte) {
	w.tb.Helper()
	c := fuzzed(family, proto, max(port, 1), remote).conn
	client := at(c.remote.Addr(), c.local.Port())
	inside := conn{proto: proto, local: at(podA.addr(family), podPort), remote: client}
	outside := inside.as(at(upl0.addr(family), hostPort))
	first := dressed(outside.rx("S"), upl0.router, upl0.mac, payload)
	r, err := w.run(uplIngress, upl0.name, input{data: first.bytes(w.tb)})
	if err != nil || r.verdict != pass {
		w.tb.Fatalf("a SYN to a hostPort: verdict %d, %v", r.verdict, err)
	}
	if _, err := w.run(podIngress, podA.name, input{data: route(r.out, podA.gwMAC, podA.mac)}); err != nil {
		w.tb.Fatal(err)
	}
	both(w, s, n, inside, outside, payload)
}

// both sends shaped packets out and in: what is inside becomes what is outside, and back.
func both(w *walk, s shape, n int, inside, outside conn, payload []byte) {
	w.tb.Helper()
	out := func(c conn) []byte { return dressed(c.tx("PA"), upl0.mac, upl0.router, payload).bytes(w.tb) }
	in := func(c conn) []byte { return dressed(c.rx("PA"), upl0.router, upl0.mac, payload).bytes(w.tb) }
	shaped(w, s, n, uplEgress, out(inside), out(outside))
	shaped(w, s, n, uplIngress, in(outside), in(inside))
}

func dressed(f frame, src, dst []byte, payload []byte) frame {
	f.srcMAC, f.dstMAC, f.payload = src, dst, payload
	return f
}

// shaped wants the shape of before to become the shape of after, or to stay as it is.
func shaped(w *walk, s shape, n int, h hook, before, after []byte) {
	w.tb.Helper()
	sent, want := s.make(before, n), s.make(after, n)
	for i, b := range sent {
		drops := w.readDrops().total()
		r, err := w.run(h, upl0.name, input{data: b})
		if err != nil {
			w.tb.Fatal(err)
		}
		expect, verdict := want[i], pass
		unread := s.untouched || read(b).kind == opaque
		if unread {
			expect = b
		}
		if unread && !s.untouched && h == uplEgress {
			verdict = shot
			if now := w.readDrops().total(); now != drops+1 {
				w.tb.Fatalf("%s, %s: %d drops are counted, %d were before", h, s.name, now, drops)
			}
		}
		if r.verdict == redirect && len(sent) == 1 && !unread && h == uplIngress { // the fast path is one hop on
			verdict, expect = redirect, hopped(want[i], podA.gwMAC, podA.mac)
		}
		if r.verdict != verdict || !bytes.Equal(r.out, expect) {
			w.tb.Fatalf("%s, %s, piece %d of %d: verdict %d\nsent %x\nwant %x\ngot  %x", h, s.name, i+1, len(sent), r.verdict, b, expect, r.out)
		}
		if len(sent) == 1 && !unread {
			if p := read(r.out); p.headerSum() != 0xffff || p.summed() && p.l4Sum() != 0xffff {
				w.tb.Fatalf("%s, %s: a wrong checksum: %x", h, s.name, r.out)
			}
		}
	}
}

// hopped is a frame one hop later.
func hopped(raw []byte, src, dst []byte) []byte {
	b := bytes.Clone(raw)
	copy(b, dst)
	copy(b[6:], src)
	if isIPv4(b) {
		b[ethLen+8]--
		fixIPv4Sum(b)
		return b
	}
	b[ethLen+7]--
	return b
}

// A model that calls anything right would find nothing: what it compares differs.
func TestShapes(t *testing.T) {
	c := conn{proto: udp, local: at(netip.MustParseAddr("10.0.0.1"), 1), remote: at(netip.MustParseAddr("10.0.0.2"), 2)}
	payload := bytes.Repeat([]byte{7}, 200)
	six := conn{proto: udp, local: at(netip.MustParseAddr("fd00::1"), 1), remote: at(netip.MustParseAddr("fd00::2"), 2)}
	mac := make([]byte, 6)
	for _, raw := range [][]byte{dressed(c.tx(""), mac, mac, payload).bytes(t), dressed(six.tx(""), mac, mac, payload).bytes(t)} {
		for i, s := range shapes {
			for n := range 20 {
				pieces := s.make(raw, n)
				if pieces == nil {
					continue
				}
				whole := read(pieces[0])
				if s.untouched != (whole.depth == notIP) || !s.untouched && whole.kind != opaque && whole.proto != udp && s.name != "fragments" {
					t.Errorf("%s %d is read as %+v", s.name, n, whole)
				}
				if i > 0 && len(pieces) == 1 && bytes.Equal(pieces[0], raw) {
					t.Errorf("%s %d changes nothing", s.name, n)
				}
			}
		}
	}
}
