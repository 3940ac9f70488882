// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// inner is a random packet of a connection of from, to pod to by the address that conn has as remote.
type inner struct {
	conn
	frame
	from, to *pod
	pieces   int // fragments it is sent in
}

func anyInner(rnd *rand.Rand, c conn, from, to *pod) inner {
	p := inner{conn: c, from: from, to: to, pieces: 1}
	p.frame = p.tx([]string{"S", "A", "PA", "FA", "R", "SP"}[rnd.IntN(6)])
	p.srcMAC, p.dstMAC, p.ttl = from.mac, from.gwMAC, uint8(3+rnd.IntN(250))
	p.payload = make([]byte, rnd.IntN(300))
	for i := range p.payload {
		p.payload[i] = byte(rnd.Uint32())
	}
	if len(p.payload) > 100 {
		p.pieces = 1 + rnd.IntN(4)
	}
	return p
}

// through takes a frame from one pod to another, in pieces, and returns them as they arrive.
func through(w *walk, f frame, pieces int, from, to *pod) (arrived [][]byte) {
	w.tb.Helper()
	for _, b := range pieced(f.bytes(w.tb), pieces) {
		r, err := w.run(podEgress, from.name, input{data: b})
		if err != nil || r.verdict != pass {
			w.tb.Fatalf("from_pod: verdict %d, %v\n%s\n%x", r.verdict, err, w.dump(), b)
		}
		if r, err = w.run(podIngress, to.name, input{data: route(r.out, to.gwMAC, to.mac)}); err != nil || r.verdict != pass {
			w.tb.Fatalf("to_pod: verdict %d, %v\n%s", r.verdict, err, w.dump())
		}
		arrived = append(arrived, r.out)
	}
	return arrived
}

func pieced(raw []byte, n int) [][]byte {
	if n == 1 {
		return [][]byte{raw}
	}
	return fragments(raw, n)
}

// wantPieces compares what arrived with f, one hop later.
func wantPieces(w *walk, what string, f frame, pieces int, to *pod, got [][]byte) {
	w.tb.Helper()
	for i, want := range pieced(f.routed(to.gwMAC, to.mac).bytes(w.tb), pieces) {
		if string(want) != string(got[i]) {
			w.tb.Fatalf("%s, piece %d of %d:\n%x\n%x", what, i+1, pieces, want, got[i])
		}
		if err := checkSums(got[i]); pieces == 1 && err != nil {
			w.tb.Fatalf("%s: %v", what, err)
		}
	}
}

// arrives brings p to the pod that is asked, and returns the connection as that one sees it: of its gateway, and otherwise p.
func (p inner) arrives(w *walk) conn {
	w.tb.Helper()
	got := through(w, p.frame, p.pieces, p.from, p.to)
	first := read(got[0])
	seen := p.conn
	seen.remote = at(p.to.addr(first.family), podPort)
	port := binary.BigEndian.Uint16(got[0][first.l4:])
	if p.conn.proto == echo {
		port = binary.BigEndian.Uint16(got[0][first.l4+4:])
		seen.remote = p.conn.remote
	}
	seen.local = at(p.to.gateway(first.family), port)
	want := p.frame
	want.src, want.dst, want.id = seen.local, seen.remote, port
	wantPieces(w, "asked", want, p.pieces, p.to, got)
	return seen
}

// answered sends an answer to what the pod saw, which has to come back as one to p.
func (p inner) answered(w *walk, seen conn) {
	w.tb.Helper()
	mirror := func(c conn) frame {
		f := p.frame
		f.flags, f.reply, f.id = "A", true, c.local.Port()
		f.src, f.dst = c.remote, c.local
		f.srcMAC, f.dstMAC = p.to.mac, p.to.gwMAC
		return f
	}
	wantPieces(w, "answered", mirror(p.conn), p.pieces, p.from, through(w, mirror(seen), p.pieces, p.to, p.from))
}

// For any packet between two networks of the node, or through a hairpin of one, whole or in fragments: the pod asked sees its gateway and
// otherwise what was sent, no two connections are one to it, and its answer comes back as the answer to what was sent.
func TestPrivilegedPropertyTurn(t *testing.T) {
	fx := newFixture(t, nil)
	rnd := newRand(t)
	for _, family := range families {
		for _, p := range protocols {
			fx.each(t, p.name+pick(family, "4", "6"), func(w *walk) {
				between, hairpin := newSightings(), newSightings()
				for range *roundFlag {
					c := conn{proto: p.proto, local: at(podB.addr(family), uint16(1+rnd.IntN(65535))), remote: at(podC.addr(family), podPort)}
					x := anyInner(rnd, c, podB, podC)
					seen := x.arrives(w)
					between.note(t, x.conn, seen)
					x.answered(w, seen)
					if p.proto == echo {
						continue
					}
					c.remote = at(upl0.addr(family), hostPort)
					x = anyInner(rnd, c, podB, podA)
					seen = x.arrives(w)
					hairpin.note(t, x.conn, seen)
					x.answered(w, seen)
				}
			}, masquerading(podB), publishTo(family, p.proto, podA, hpSNAT))
		}
	}
}
