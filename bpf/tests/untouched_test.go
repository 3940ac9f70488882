// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// oddity makes a frame that no program may change out of one that they would.
// It returns nil where it makes no sense.
type oddity struct {
	name string
	make func(raw []byte) []byte
}

func isIPv4(raw []byte) bool { return binary.BigEndian.Uint16(raw[12:]) == typeIPv4 }

// clone returns raw after change.
func clone(raw []byte, change func(b []byte)) []byte {
	b := append([]byte{}, raw...)
	change(b)
	return b
}

// ipv4 changes the IPv4 header and makes its checksum fit.
func ipv4(change func(ip []byte)) func([]byte) []byte {
	return func(raw []byte) []byte {
		if !isIPv4(raw) {
			return nil
		}
		b := clone(raw, func(b []byte) { change(b[ethLen:]) })
		fixIPv4Sum(b)
		return b
	}
}

// extension puts an IPv6 extension header before the rest.
func extension(kind byte, header ...byte) func([]byte) []byte {
	return func(raw []byte) []byte {
		if isIPv4(raw) {
			return nil
		}
		const end = ethLen + 40
		b := append([]byte{}, raw[:end]...)
		b = append(b, header...)
		b[end] = raw[ethLen+6]
		b = append(b, raw[end:]...)
		b[ethLen+6] = kind
		binary.BigEndian.PutUint16(b[ethLen+4:], uint16(len(b)-end))
		return b
	}
}

// protocol says that something else is in the packet.
func protocol(number byte) func([]byte) []byte {
	return func(raw []byte) []byte {
		if isIPv4(raw) {
			return ipv4(func(ip []byte) { ip[9] = number })(raw)
		}
		return clone(raw, func(b []byte) { b[ethLen+6] = number })
	}
}

// icmp makes it an ICMP message of a type, for IPv4 and IPv6.
func icmp(v4, v6 byte) func([]byte) []byte {
	return func(raw []byte) []byte {
		number := pick(familyOf(raw), byte(protoICMP), byte(protoICM6))
		b := protocol(number)(raw)
		b[read(raw).l4] = pick(familyOf(raw), v4, v6)
		return b
	}
}

func familyOf(raw []byte) int {
	if isIPv4(raw) {
		return 4
	}
	return 6
}

// cutAfter keeps n bytes of the L4 header.
func cutAfter(n int) func([]byte) []byte {
	return func(raw []byte) []byte {
		p := read(raw)
		if need := map[byte]int{protoTCP: 20}[p.proto]; n >= max(need, 8) {
			return nil
		}
		return raw[:p.l4+n]
	}
}

// shortened says in the IP header that n bytes follow it, the rest being padding.
func shortened(n int) func([]byte) []byte {
	return func(raw []byte) []byte {
		if isIPv4(raw) {
			return ipv4(func(ip []byte) { binary.BigEndian.PutUint16(ip[2:], uint16(20+n)) })(raw)
		}
		return clone(raw, func(b []byte) { binary.BigEndian.PutUint16(b[ethLen+4:], uint16(max(n, 0))) })
	}
}

// cutFrame keeps n bytes of the frame.
func cutFrame(n int) func([]byte) []byte {
	return func(raw []byte) []byte { return raw[:n] }
}

func vlan(etherType uint16) func([]byte) []byte {
	return func(raw []byte) []byte {
		b := append([]byte{}, raw[:12]...)
		b = binary.BigEndian.AppendUint16(b, etherType)
		b = append(b, 0, 5)
		return append(b, raw[12:]...)
	}
}

var oddities = []oddity{
	{"ARP", func(raw []byte) []byte {
		return clone(raw, func(b []byte) {
			b[12], b[13] = 8, 6
			clear(b[28:32]) // it names no sender
		})
	}},
	{"LLDP", func(raw []byte) []byte { return clone(raw, func(b []byte) { b[12], b[13] = 0x88, 0xcc }) }},
	{"length field", func(raw []byte) []byte { return clone(raw, func(b []byte) { b[12], b[13] = 0, 40 }) }},
	{"other family's type", func(raw []byte) []byte {
		return clone(raw, func(b []byte) {
			binary.BigEndian.PutUint16(b[12:], pick(familyOf(raw), uint16(typeIPv6), uint16(typeIPv4)))
		})
	}},
	{"VLAN", vlan(0x8100)},
	{"QinQ", vlan(0x88a8)},
	{"first fragment", ipv4(func(ip []byte) { ip[6], ip[7] = 0x20, 0 })},
	{"middle fragment", ipv4(func(ip []byte) { ip[6], ip[7] = 0x20, 185 })},
	{"last fragment", ipv4(func(ip []byte) { ip[6], ip[7] = 0, 185 })},
	{"fragment far behind", ipv4(func(ip []byte) { ip[6], ip[7] = 0x1f, 0xff })},
	{"ihl 0", ipv4(func(ip []byte) { ip[0] = 0x40 })},
	{"ihl 4", ipv4(func(ip []byte) { ip[0] = 0x44 })},
	{"ihl beyond the end", ipv4(func(ip []byte) { ip[0] = 0x4f })},
	{"version 5", func(raw []byte) []byte { return clone(raw, func(b []byte) { b[ethLen] = b[ethLen]&15 | 0x50 }) }},
	{"hop-by-hop", extension(0, 0, 0, 1, 4, 0, 0, 0, 0)},
	{"routing", extension(43, 0, 0, 0, 0, 0, 0, 0, 0)},
	{"destination options", extension(60, 0, 0, 1, 4, 0, 0, 0, 0)},
	{"authentication", extension(51, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
	{"atomic fragment", extension(44, 0, 0, 0, 0, 1, 2, 3, 4)},
	{"first IPv6 fragment", extension(44, 0, 0, 0, 1, 1, 2, 3, 4)},
	{"later IPv6 fragment", extension(44, 0, 0, 5, 0x38, 1, 2, 3, 4)},
	{"no next header", protocol(59)},
	{"SCTP", protocol(132)},
	{"GRE", protocol(47)},
	{"UDP-Lite", protocol(136)},
	{"reserved", protocol(255)},
	{"ICMP of the other family", func(raw []byte) []byte {
		return protocol(pick(familyOf(raw), byte(protoICM6), byte(protoICMP)))(raw)
	}},
	{"ICMP unreachable", icmp(3, 1)},
	{"ICMP too big", icmp(3, 2)},
	{"ICMP time exceeded", icmp(11, 3)},
	{"ICMP parameter problem", icmp(12, 4)},
	{"ICMP timestamp, neighbour solicitation", icmp(13, 135)},
	{"ICMP timestamp, router advertisement", icmp(13, 134)},
	{"no L4", cutAfter(0)},
	{"L4 of 1 byte", cutAfter(1)},
	{"L4 of 7 bytes", cutAfter(7)},
	{"L4 of 8 bytes", cutAfter(8)},
	{"L4 of 19 bytes", cutAfter(19)},
	{"length up to L4", shortened(0)},
	{"length of 7 bytes of L4", shortened(7)},
	{"no length", shortened(-20)},
	{"Ethernet only", cutFrame(14)},
	{"15 bytes", cutFrame(15)},
	{"33 bytes", cutFrame(33)},
	{"53 bytes", func(raw []byte) []byte {
		if isIPv4(raw) {
			return nil
		}
		return raw[:53]
	}},
}

// ways are the four hooks, each with a packet that it would change or record.
func ways(j, k *journey) []struct {
	hook
	dev string
	raw []byte
} {
	end := func(f frame, src, dst []byte) []byte {
		f.srcMAC, f.dstMAC = src, dst
		return f.bytes(j.tb)
	}
	return []struct {
		hook
		dev string
		raw []byte
	}{
		{podEgress, podA.name, end(j.inside.tx("S"), podA.mac, podA.gwMAC)},
		{uplEgress, upl0.name, end(j.inside.tx("S"), upl0.mac, upl0.router)},
		{uplIngress, upl0.name, end(j.outside.rx("SA"), upl0.router, upl0.mac)},
		{uplIngress, upl0.name, end(k.outside.rx("S"), upl0.router, upl0.mac)},
		{uplIngress, upl0.name, end(k.inside.rx("S"), upl0.router, upl0.mac)},
		{podIngress, podA.name, end(k.inside.rx("S"), podA.gwMAC, podA.mac)},
	}
}

func TestPrivilegedUntouched(t *testing.T) {
	fx := newFixture(t, nil)
	for _, odd := range oddities {
		t.Run(odd.name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				j, k := w.opens(family, proto, podA, keptPort, keptPort), w.toHostPort(family, proto, podA)
				for _, way := range ways(j, k) {
					b := odd.make(way.raw)
					if b == nil {
						continue
					}
					p := read(b)
					if p.depth == whole {
						t.Fatalf("%s: the frame is not odd", way.hook)
					}
					want := passes(b)
					want.uncounted = p.depth == notIP
					if p.depth == onlyIP && way.hook == uplEgress {
						// Nothing of a masqueraded pod leaves untranslated.
						want = wantDrop(map[kind]drops.Reason{opaque: reasonOpaque, later: reasonFragment, failure: reasonOrphan}[p.kind], podA)
					}
					if p.kind == tuple && (way.hook == uplEgress || way.hook == uplIngress) && p.depth == onlyIP {
						continue // odd_test.go
					}
					w.stepInput(way.hook, way.dev, input{data: b, badSums: true}, want)
					if p.kind == tuple && way.hook == podIngress {
						w.empty("sl_ct_unassured") // it came in by no uplink: TestPrivilegedInboundByOtherDevice
					}
				}
				w.wantFlows(0, 0)
			}, masquerading(podA), publishing(mapping(4, tcp, podA), mapping(4, udp, podA),
				mapping(6, tcp, podA), mapping(6, udp, podA)))
		})
	}
}

// A VLAN tag that is beside the packet, as a device that takes it off leaves it. A
// small program puts it there and goes on to the real one.
func TestPrivilegedUntouchedVLANBeside(t *testing.T) {
	fx := newFixture(t, nil)
	for h := range hooks {
		p := fx.behind(t, h,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, 0x0081), // ETH_P_8021Q, big endian
			asm.Mov.Imm(asm.R3, 5),
			asm.FnSkbVlanPush.Call())
		real := parts[h].into(fx.programSet)
		defer func(p *ebpf.Program) { *real = p }(*real)
		*real = p
	}
	fx.modes = fx.modes[:1] // the tag is not in the sum
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j, k := w.opens(family, proto, podA, keptPort, keptPort), w.toHostPort(family, proto, podA)
		for _, way := range ways(j, k) {
			w.step(way.hook, way.dev, way.raw, untouched(way.raw))
		}
		w.wantFlows(0, 0)
	}, masquerading(podA), publishing(mapping(4, tcp, podA), mapping(4, udp, podA)))
}

// Payloads of odd length, and of none, keep their checksums right on the way.
func TestPrivilegedOddLengths(t *testing.T) {
	fx := newFixture(t, nil)
	for _, size := range []int{0, 1, 2, 3, 7, 255, 1401} {
		for _, family := range families {
			for _, p := range protocols {
				fx.each(t, fmt.Sprintf("%d/%s%d", size, p.name, family), func(w *walk) {
					j := w.opens(family, p.proto, podA, movedPort, rolled(2))
					w.rolls(2)
					j.size = size + 1
					j.answered()
				}, masquerading(podA))
			}
		}
	}
}
