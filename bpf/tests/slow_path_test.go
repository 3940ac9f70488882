// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

const (
	reasonFragment = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_FRAGMENT)
	reasonOpaque   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_UNPARSABLE)
)

// fragments cuts a frame's packet into n fragments, the first with the L4 header.
func fragments(raw []byte, n int) (all [][]byte) {
	p := read(raw)
	const header = 24 // of L4, in units of 8 bytes
	body := p.raw[p.l4:]
	for off := 0; len(all) < n; {
		size := header
		if len(all) == n-1 {
			size = len(body) - off
		}
		size = min(size, len(body)-off)
		more := len(all) < n-1
		all = append(all, fragment(p, off, body[off:off+size], more))
		off += size
	}
	return all
}

// fragment is one of a packet, size bytes of its body from off.
func fragment(p packet, off int, body []byte, more bool) []byte {
	if p.family == 4 {
		b := append(append([]byte{}, p.raw[:p.l4]...), body...)
		binary.BigEndian.PutUint16(b[ethLen+2:], uint16(len(b)-ethLen))
		flags := uint16(off / 8)
		if more {
			flags |= 0x2000
		}
		binary.BigEndian.PutUint16(b[ethLen+6:], flags)
		fixIPv4Sum(b)
		return b
	}
	flags := uint16(off)
	if more {
		flags |= 1
	}
	b := append([]byte{}, p.raw[:p.l4]...)
	b[ethLen+6] = 44
	b = append(b, p.proto, 0)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = append(b, 0xde, 0xad, 0xbe, 0xef)
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[ethLen+4:], uint16(len(b)-ethLen-40))
	return b
}

// leaving is a packet of podA behind the stack, on its way to the client.
func (w *walk) leaving(family, proto int) []byte {
	w.tb.Helper()
	j := w.opens(family, proto, podA, movedPort, rolled(3))
	j.size = 201
	f := j.dress(j.inside.tx("PA"))
	f.srcMAC, f.dstMAC = upl0.mac, upl0.router
	return f.bytes(w.tb)
}

// slowPath sends a packet both ways through the uplink's hooks in an odd shape: make
// turns a frame into what goes over the wire, in its order.
func (j *journey) slowPath(make func(raw []byte) [][]byte, up, down string) {
	j.tb.Helper()
	before, after := j.dress(j.outside.rx(down)), j.dress(j.inside.rx(down))
	for _, f := range []*frame{&before, &after} {
		f.srcMAC, f.dstMAC = j.up.router, j.up.mac
	}
	j.shapes(uplIngress, make(before.bytes(j.tb)), make(after.bytes(j.tb)), j.mark)
	before, after = j.dress(j.inside.tx(up)), j.dress(j.outside.tx(up))
	for _, f := range []*frame{&before, &after} {
		f.srcMAC, f.dstMAC = j.up.mac, j.up.router
	}
	j.shapes(uplEgress, make(before.bytes(j.tb)), make(after.bytes(j.tb)), 0)
}

func (j *journey) shapes(h hook, before, after [][]byte, mark uint32) {
	j.tb.Helper()
	for i, b := range before {
		want := passes(after[i])
		want.mark = mark
		j.step(h, j.up.name, b, want)
	}
}

// slowPathJourneys are connections of podA: one that it opens, one through its hostPort.
func slowPathJourneys(t *testing.T, fx *fixture, f func(j *journey)) {
	t.Helper()
	for _, family := range families {
		for _, p := range protocols {
			fx.each(t, fmt.Sprintf("masquerade/%s%d", p.name, family), func(w *walk) {
				w.rolls(3)
				j := w.opens(family, p.proto, podA, movedPort, rolled(3))
				j.out("S")
				j.size = 201
				f(j)
			}, masquerading(podA))
			if p.proto == echo {
				continue
			}
			fx.each(t, fmt.Sprintf("hostPort/%s%d", p.name, family), func(w *walk) {
				j := w.toHostPort(family, p.proto, podA)
				j.in("S")
				j.size = 201
				f(j)
			}, masquerading(podA), publishing(mapping(family, p.proto, podA)))
		}
	}
}

// A datagram in fragments, in order: each has its addresses translated.
func TestPrivilegedFragments(t *testing.T) {
	fx := newFixture(t, nil)
	for _, n := range []int{2, 3, 6} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			slowPathJourneys(t, fx, func(j *journey) {
				j.slowPath(func(raw []byte) [][]byte { return fragments(raw, n) }, "PA", "PA")
				j.slowPath(func(raw []byte) [][]byte { return fragments(raw, n) }, "PA", "PA")
			})
		})
	}
}

// Behind the first one the order does not matter.
func TestPrivilegedFragmentsShuffled(t *testing.T) {
	fx := newFixture(t, nil)
	slowPathJourneys(t, fx, func(j *journey) {
		j.slowPath(func(raw []byte) [][]byte {
			all := fragments(raw, 4)
			slices.Reverse(all[1:])
			return append(all, all[2]) // and one twice
		}, "PA", "PA")
	})
}

// A later fragment that comes before the first, or too late: toward the node it is left
// to the stack, since it may be the node's; a masqueraded pod's does not leave.
func TestPrivilegedFragmentsOrphaned(t *testing.T) {
	fx := newFixture(t, nil)
	slowPathJourneys(t, fx, func(j *journey) {
		sent, arrived := j.dress(j.inside.tx("PA")), j.dress(j.outside.rx("PA"))
		sent.srcMAC, sent.dstMAC = j.up.mac, j.up.router
		arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
		orphaned := func() {
			for _, b := range fragments(sent.bytes(t), 3)[1:] {
				j.step(uplEgress, j.up.name, b, wantDrop(reasonFragment, podA))
			}
			for _, b := range fragments(arrived.bytes(t), 3)[1:] {
				j.step(uplIngress, j.up.name, b, untouched(b))
			}
		}
		orphaned()
		j.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
		j.later(30 * time.Second)
		orphaned()
	})
}

// The fragments of a pod that is not masqueraded, and of what a masqueraded one may
// send untranslated, stay as they are.
func TestPrivilegedFragmentsPlain(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		plain := w.plain(family, proto, podB, keptPort)
		plain.size = 201
		plain.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
		plain.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3)[1:] }, "PA", "PA")
		in := w.inbound(family, proto, podA)
		in.size = 201
		in.in("S")
		in.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
		own := w.plain(family, proto, podA, keptPort)
		own.inside.remote = at(pick(family, ip("10.1.99.9"), ip("fd00:1::99")), serverTCP)
		own.outside, own.size = own.inside, 201
		own.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
	}, masquerading(podA))
}

// A connection whose first packet is in fragments.
func TestPrivilegedFragmentsOpen(t *testing.T) {
	fx := newFixture(t, nil)
	shape := func(raw []byte) [][]byte { return fragments(raw, 3) }
	for _, family := range families {
		fx.each(t, fmt.Sprintf("hostPort%d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.size = 201
			j.slowPath(shape, "", "")
			w.wantFlow(unproven, j.inside, flowDNAT|flowDNATAny|flowRXFirst)
		}, masquerading(podA), publishing(mapping(family, udp, podA)))
		fx.each(t, fmt.Sprintf("masquerade%d", family), func(w *walk) {
			w.rolls(3)
			j := w.opens(family, udp, podA, movedPort, rolled(3))
			j.size = 201
			sent, left := j.dress(j.inside.tx("")), j.dress(j.outside.tx(""))
			sent.srcMAC, sent.dstMAC, left.srcMAC, left.dstMAC = upl0.mac, upl0.router, upl0.mac, upl0.router
			j.shapes(uplEgress, shape(sent.bytes(t)), shape(left.bytes(t)), 0)
			j.slowPath(shape, "", "")
		}, masquerading(podA))
	}
}

// IPv6 extension headers, one and several, before the L4 header.
func TestPrivilegedExtensionHeaders(t *testing.T) {
	fx := newFixture(t, nil)
	hop := extension(0, 0, 0, 1, 4, 0, 0, 0, 0)
	long := extension(60, append([]byte{0, 3, 1, 28}, make([]byte, 28)...)...)
	tests := map[string]func([]byte) []byte{
		"hop-by-hop":     hop,
		"destination":    long,
		"routing, done":  extension(43, 0, 0, 0, 0, 0, 0, 0, 0),
		"authentication": extension(51, append([]byte{0, 4}, make([]byte, 22)...)...),
		"atomic":         extension(44, 0, 0, 0, 0, 1, 2, 3, 4),
		"several": func(raw []byte) []byte {
			return hop(extension(43, 0, 0, 4, 0, 0, 0, 0, 0)(long(extension(51, append([]byte{0, 1}, make([]byte, 10)...)...)(raw))))
		},
	}
	for name, shape := range tests {
		t.Run(name, func(t *testing.T) {
			slowPathJourneys(t, fx, func(j *journey) {
				if j.family() != 6 {
					return
				}
				make := func(raw []byte) [][]byte { return [][]byte{shape(raw)} }
				j.slowPath(make, "PA", "PA")
				j.slowPath(make, "PA", "PA")
			})
		})
	}
}

// What the walk over extension headers gives up: too many, too short, not to its last destination.
func TestPrivilegedExtensionHeadersOpaque(t *testing.T) {
	fx := newFixture(t, nil)
	many := func(raw []byte) []byte {
		for range 9 {
			raw = extension(60, 0, 0, 1, 4, 0, 0, 0, 0)(raw)
		}
		return raw
	}
	tests := map[string]func([]byte) []byte{
		"many":           many,
		"segments left":  extension(43, 0, 0, 4, 1, 0, 0, 0, 0),
		"beyond the end": extension(60, 0, 200, 1, 4, 0, 0, 0, 0),
	}
	for name, shape := range tests {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				if family != 6 {
					return
				}
				w.stepInput(uplEgress, upl0.name, input{data: shape(w.leaving(6, proto)), badSums: true}, wantDrop(reasonOpaque, podA))
				j := w.opens(family, proto, podA, keptPort, keptPort)
				j.answered()
				f := j.outside.rx("PA")
				f.srcMAC, f.dstMAC = upl0.router, upl0.mac
				b := shape(f.bytes(t))
				w.stepInput(uplIngress, upl0.name, input{data: b, badSums: true}, untouched(b))
			}, masquerading(podA))
		})
	}
}

// Protocols whose checksum does not cover the addresses, or that have none: the
// addresses change, the rest does not.
var bareProtocols = []struct {
	name   string
	number uint8
	ports  bool // at the place where TCP has them
}{{"SCTP", 132, true}, {"GRE", 47, false}, {"ESP", 50, false}, {"IPIP", 4, false}}

// bare turns a UDP frame into one of another protocol.
func bare(number uint8) func([]byte) [][]byte {
	return func(raw []byte) [][]byte {
		b := protocol(number)(raw)
		off := read(raw).l4
		copy(b[off+4:], []byte{1, 2, 3, 4}) // no length and checksum there
		return [][]byte{b}
	}
}

// One pod may speak such a protocol with a remote end; another one has to wait.
func TestPrivilegedBareProtocols(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, p := range bareProtocols {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				j := w.opens(family, udp, podA, keptPort, keptPort)
				k := w.opens(family, udp, podB, keptPort, keptPort)
				first := func(j *journey) []byte {
					f := j.inside.tx("")
					f.srcMAC, f.dstMAC = upl0.mac, upl0.router
					return bare(p.number)(f.bytes(t))[0]
				}
				f := j.outside.tx("")
				f.srcMAC, f.dstMAC = upl0.mac, upl0.router
				w.step(uplEgress, upl0.name, first(j), passes(bare(p.number)(f.bytes(t))[0]))
				j.slowPath(bare(p.number), "", "")
				w.step(uplEgress, upl0.name, first(k), wantDrop(reasonPorts, podB))
				j.slowPath(bare(p.number), "", "")
				w.later(181 * time.Second)
				k.slowPathOut(bare(p.number))
				k.slowPath(bare(p.number), "", "")
			}, masquerading(podA, podB))
		}
	}
}

// slowPathOut is the first half of slowPath that a connection of the pod begins with.
func (j *journey) slowPathOut(make func([]byte) [][]byte) {
	j.tb.Helper()
	before, after := j.dress(j.inside.tx("")), j.dress(j.outside.tx(""))
	for _, f := range []*frame{&before, &after} {
		f.srcMAC, f.dstMAC = j.up.mac, j.up.router
	}
	j.shapes(uplEgress, make(before.bytes(j.tb)), make(after.bytes(j.tb)), 0)
}

// SCTP through a hostPort: where the ports are the same, the addresses change. A
// mapping with another port is not one for the datapath.
func TestPrivilegedHostPortSCTP(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		m := mapping(family, protoSCTP, podA)
		m.port = hostPort
		fx.each(t, fmt.Sprintf("same port %d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.inside = j.inside.as(at(podA.addr(family), hostPort))
			j.slowPath(bare(protoSCTP), "", "")
			j.slowPath(bare(protoSCTP), "", "")
		}, masquerading(podA), publishing(m))
		m.port = podPort
		fx.each(t, fmt.Sprintf("other port %d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			f := j.outside.rx("")
			f.srcMAC, f.dstMAC = upl0.router, upl0.mac
			b := bare(protoSCTP)(f.bytes(t))[0]
			w.step(uplIngress, upl0.name, b, untouched(b))
		}, masquerading(podA), publishing(m))
	}
}
