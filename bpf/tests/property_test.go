// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random walks; 0 = from the clock")
	// A translated connection takes two places of its table. All but TCP share 1024 here, and with 800 of them in use a search fails now and then.
	roundFlag = flag.Int("rounds", 256, "random connections for each family and protocol, 400 at most")
)

// newRand returns the only source of randomness of a test, and says how to have it again.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again with -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// For any packet p of a masqueraded pod: what leaves the uplink does not show the
// pod, has valid checksums, and is p in everything but source and hop; and the
// answer to it comes back as the answer to p.
func TestPrivilegedPropertyMasquerade(t *testing.T) {
	fx := newFixture(t, nil)
	rnd := newRand(t)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		seen := newSightings()
		for range *roundFlag {
			p := anyPacket(rnd, family, proto)
			o := leaves(w, p)
			seen.note(t, p.conn, o)
			comesBack(w, p, o)
		}
	}, masquerading(podA))
}

// sightings are what the outside sees of connections, both ways round. One that is opened
// anew after it had ended may get another tuple; its old one is free then.
type sightings struct{ outside, inside map[conn]conn }

func newSightings() sightings { return sightings{map[conn]conn{}, map[conn]conn{}} }

// note fails the test if the outside tuple is another live connection's.
func (s sightings) note(t *testing.T, c, outside conn) {
	t.Helper()
	if other, taken := s.inside[outside]; taken && other != c && s.outside[other] == outside {
		t.Fatalf("%s leaves as %s, which %s already has", tupleText(c.tuple()), tupleText(outside.tuple()), tupleText(other.tuple()))
	}
	s.outside[c], s.inside[outside] = outside, c
}

// anything is a random packet of a random connection of podA.
type anything struct {
	conn
	frame
}

func anyPacket(rnd *rand.Rand, family, proto int) anything {
	remote := netip.AddrFrom4([4]byte{203, 0, 113, byte(rnd.IntN(4))})
	if family == 6 {
		a := client6.As16()
		a[15] = byte(rnd.IntN(4))
		remote = netip.AddrFrom16(a)
	}
	p := anything{conn: conn{
		proto: proto,
		local: at(podA.addr(family), uint16(rnd.Uint32())), remote: at(remote, uint16(1+rnd.IntN(3))),
	}}
	p.frame = p.tx([]string{"S", "A", "PA", "FA", "R", "SP"}[rnd.IntN(6)])
	p.srcMAC, p.dstMAC = podA.mac, podA.gwMAC
	p.ttl = uint8(2 + rnd.IntN(254))
	p.payload = make([]byte, rnd.IntN(64))
	for i := range p.payload {
		p.payload[i] = byte(rnd.Uint32())
	}
	if family == 4 && rnd.IntN(4) == 0 {
		p.options = make([]byte, 4*(1+rnd.IntN(10)))
		for i := range p.options {
			p.options[i] = 1
		}
	}
	// With a sum over the whole packet UDP without a checksum is not checkable, see TestPrivilegedHostPortNoUDPChecksum.
	return p
}

// leaves sends p through the stack, or by the fast path, and returns the connection as the outside sees it.
func leaves(w *walk, p anything) conn {
	w.tb.Helper()
	sent := p.frame.bytes(w.tb)
	r, err := w.run(podEgress, podA.name, input{data: sent})
	if err != nil {
		w.tb.Fatal(err)
	}
	left := r.out
	if r.verdict == pass {
		if string(left) != string(sent) {
			w.tb.Fatalf("from_pod changed what it passed on:\n%x\n%x", sent, left)
		}
		if r, err = w.run(uplEgress, upl0.name, input{data: route(left, podA.mac, podA.gwMAC)}); err != nil {
			w.tb.Fatal(err)
		}
		left = r.out
		if r.verdict != pass {
			w.tb.Fatalf("verdict %d of uplink_egress", r.verdict)
		}
	} else if r.verdict != redirect {
		w.tb.Fatalf("verdict %d of from_pod", r.verdict)
	}
	if err := checkSums(left); err != nil {
		w.tb.Fatal(err)
	}
	got := read(left)
	port := binary.BigEndian.Uint16(left[got.l4:])
	if p.conn.proto == echo {
		port = binary.BigEndian.Uint16(left[got.l4+4:])
	}
	o := p.conn.as(at(got.src, port))
	if got.src != upl0.addr(got.family) {
		w.tb.Fatalf("%s left as %s", tupleText(p.tuple()), tupleText(o.tuple()))
	}
	want := p.frame
	want.src, want.id = o.local, o.local.Port()
	want = want.routed(podA.mac, podA.gwMAC)
	if string(want.bytes(w.tb)) != string(left) {
		w.tb.Fatalf("more than the source and the hop has changed:\n%x\n%x", want.bytes(w.tb), left)
	}
	return o
}

// comesBack answers from outside: un-NAT(mirror(NAT(p))) is mirror(p).
func comesBack(w *walk, p anything, o conn) {
	w.tb.Helper()
	mirror := func(c conn) frame {
		f := p.frame
		f.flags, f.reply = "A", true
		f.src, f.dst, f.id = c.remote, c.local, c.local.Port()
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		return f
	}
	r, err := w.run(uplIngress, upl0.name, input{data: mirror(o).bytes(w.tb)})
	if err != nil {
		w.tb.Fatal(err)
	}
	want := mirror(p.conn)
	switch r.verdict {
	case pass:
		// By the stack; the last hook confirms the direction.
		if _, err := w.run(podIngress, podA.name, input{data: route(r.out, podA.gwMAC, podA.mac)}); err != nil {
			w.tb.Fatal(err)
		}
	case redirect:
		want = want.routed(podA.gwMAC, podA.mac)
	default:
		w.tb.Fatalf("verdict %d of uplink_ingress", r.verdict)
	}
	if string(want.bytes(w.tb)) != string(r.out) {
		w.tb.Fatalf("the answer to %s came back wrong:\n%x\n%x", tupleText(p.tuple()), want.bytes(w.tb), r.out)
	}
}
