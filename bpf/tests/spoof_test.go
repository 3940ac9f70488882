// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

const (
	reasonIP  = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SPOOFED_IP)
	reasonMAC = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SPOOFED_MAC)
)

// from is a packet that podA sends with some source address and MAC.
func (w *walk) from(family, proto int, src netip.Addr, srcMAC []byte) frame {
	f := conn{proto: proto, local: at(src, keptPort), remote: at(client(family), serverTCP)}.tx("S")
	f.srcMAC, f.dstMAC = srcMAC, podA.gwMAC
	return f
}

// foreign are sources that are not podA's.
func foreign(family int) []netip.Addr {
	return []netip.Addr{
		podB.addr(family), podC.addr(family), upl0.addr(family), client(family),
		pick(family, ip("10.1.0.1"), ip("fd00:1::1")),
		pick(family, ip("127.0.0.1"), ip("::1")),
		pick(family, ip("169.254.1.1"), ip("fec0::1")),
		pick(family, ip("0.0.0.1"), ip("::2")),
		pick(family, ip("255.255.255.255"), ip("ff02::1")),
	}
}

func TestPrivilegedAntiSpoof(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		for _, src := range foreign(family) {
			b := w.from(family, proto, src, podA.mac).bytes(t)
			w.step(podEgress, podA.name, b, wantDrop(reasonIP, podA))
		}
		for _, m := range [][]byte{podB.mac, podA.gwMAC, mac(0xa, 2^0x80), {3, 0, 0, 0, 0xa, 2}, {2, 0, 0, 1, 0xa, 2}} {
			b := w.from(family, proto, podA.addr(family), m).bytes(t)
			w.step(podEgress, podA.name, b, wantDrop(reasonMAC, podA))
		}
		w.wantFlows(0, 0)
		b := w.from(family, proto, podA.addr(family), podA.mac).bytes(t)
		w.step(podEgress, podA.name, b, passes(b))
	}, masquerading(podA))
}

// A pod with two devices may send from the address of one by the other: the stack routes it, no flow is learned from it.
func TestPrivilegedAntiSpoofOwnOtherDevice(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.samePod(podA, podB)
		b := w.from(family, proto, podB.addr(family), podA.mac).bytes(t)
		w.step(podEgress, podA.name, b, untouched(b))
		w.wantFlows(0, 0)
		b = w.from(family, proto, podC.addr(family), podA.mac).bytes(t)
		w.step(podEgress, podA.name, b, wantDrop(reasonIP, podA))
	}, masquerading(podA, podB, podC))
}

// samePod makes two devices those of one pod.
func (w *walk) samePod(a, b *pod) {
	w.tb.Helper()
	const id = 77
	stats := make([]bpfgen.TypesSlEndpointStats, ebpf.MustPossibleCPU())
	for i := range stats {
		stats[i].Pod = id
	}
	w.put("sl_ep_stats", uint32(w.index(a.name)), stats)
	for _, family := range []int{4, 6} {
		w.put("sl_endpoints", codec.Addr(b.addr(family)), &bpfgen.TypesSlEndpoint{
			Owner: b.owner, Pod: id, Ifindex: uint32(w.index(b.name)), RouteIfindex: uint32(w.index(b.route)), Flags: epMasquerade,
			Mtu: podMTU, Mac: [6]uint8(b.mac), GatewayMac: [6]uint8(b.gwMAC), PrefixLen: uint8(pick(family, 96+b.bits4, b.bits6)),
		})
	}
}

// Fragments and other protocols are checked like everything else.
func TestPrivilegedAntiSpoofNoPorts(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		for _, odd := range oddities {
			src := w.from(family, proto, podB.addr(family), podA.mac).bytes(t)
			if b := odd.make(src); b != nil && read(b).depth == onlyIP {
				w.stepInput(podEgress, podA.name, input{data: b, badSums: true}, wantDrop(reasonIP, podA))
			}
		}
	})
}

// What a host sends on its link. TestPrivilegedWithoutSource has what it sends before it has an address.
func TestPrivilegedAntiSpoofAllowed(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		sources := pick(family, nil, []netip.Addr{ip("fe80::1"), ip("febf:ffff::1")})
		for _, src := range sources {
			for _, m := range [][]byte{podA.mac, podB.mac} {
				b := w.from(family, proto, src, m).bytes(t)
				w.step(podEgress, podA.name, b, untouched(b))
			}
		}
		w.wantFlows(0, 0)
	}, masquerading(podA))
}

func TestPrivilegedAntiSpoofOff(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_anti_spoof": 0})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		for _, src := range foreign(family) {
			b := w.from(family, proto, src, podA.mac).bytes(t)
			w.step(podEgress, podA.name, b, untouched(b))
		}
		w.wantFlows(0, 0)
		b := w.from(family, proto, podA.addr(family), podB.mac).bytes(t)
		w.step(podEgress, podA.name, b, passes(b))
		w.wantFlows(0, 1)
	}, masquerading(podA))
}

// An IPv6 packet with a v4-mapped source or destination (::ffff:a.b.c.d) is dropped at every hook. Linux gives such a UDP datagram to
// sockets of both families as one of IPv4, so it would pass each check under a false name. The IPv4 connection of the same
// addresses goes on.
func TestPrivilegedMappedAddresses(t *testing.T) {
	fx := newFixture(t, nil)
	for _, p := range protocols {
		fx.each(t, p.name, func(w *walk) {
			j := w.opens(4, p.proto, podA, keptPort, keptPort)
			j.answered()
			k := w.toHostPort(4, p.proto, podA)
			for _, ends := range mappedEnds {
				mapped := func(f frame, src, dst []byte) []byte {
					f.srcMAC, f.dstMAC = src, dst
					return mappedFrame(t, f, ends)
				}
				refused := func(h hook, dev string, b []byte, victim *pod) {
					t.Helper()
					w.stepInput(h, dev, input{data: b, badSums: true}, wantDrop(reasonMapped, victim))
				}
				refused(uplIngress, "upl0", mapped(j.outside.rx("PA"), upl0.router, upl0.mac), nil)
				refused(uplIngress, "upl0", mapped(k.outside.rx("S"), upl0.router, upl0.mac), nil)
				refused(podIngress, podA.name, mapped(j.inside.rx("PA"), podA.gwMAC, podA.mac), podA)
				refused(podEgress, podA.name, mapped(j.inside.tx("PA"), podA.mac, podA.gwMAC), podA)
				refused(uplEgress, "upl0", mapped(j.inside.tx("PA"), upl0.mac, upl0.router), nil)
			}
			w.wantFlows(2, 0)
		}, masquerading(podA), publishing(mapping(4, tcp, podA), mapping(4, udp, podA)))
	}
}

// mappedEnd says which ends of an IPv6 packet are v4-mapped.
type mappedEnd struct{ src, dst bool }

var mappedEnds = []mappedEnd{{true, true}, {src: true}, {dst: true}}

// mappedFrame is f over IPv6, with v4-mapped addresses at the ends.
func mappedFrame(tb testing.TB, f frame, ends mappedEnd) []byte {
	tb.Helper()
	// The builder takes such an address for IPv4: build with others and put them in.
	v6 := f
	v6.src, v6.dst = at(client6, f.src.Port()), at(podA.addr6, f.dst.Port())
	raw := v6.bytes(tb)
	src, dst := f.src.Addr().As16(), f.dst.Addr().As16()
	if ends.src {
		copy(raw[ethLen+8:], src[:])
	}
	if ends.dst {
		copy(raw[ethLen+24:], dst[:])
	}
	fixL4Sum(raw)
	return raw
}
