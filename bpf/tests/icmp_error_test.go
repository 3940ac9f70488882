// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

const reasonOrphan = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_ICMP_ORPHAN)

// icmpKind is an ICMP error of both families.
type icmpKind struct {
	name   string
	v4, v6 [2]uint8 // type, code
	rest   uint32   // pointer, or MTU of the next hop
}

var icmpKinds = []icmpKind{
	{"unreachable", [2]uint8{3, 1}, [2]uint8{1, 3}, 0},
	{"port", [2]uint8{3, 3}, [2]uint8{1, 4}, 0},
	{"too big", [2]uint8{3, 4}, [2]uint8{2, 0}, 1300},
	{"time exceeded", [2]uint8{11, 0}, [2]uint8{3, 0}, 0},
	{"parameter", [2]uint8{12, 0}, [2]uint8{4, 1}, 20 << 24},
	{"quench", [2]uint8{4, 0}, [2]uint8{3, 1}, 0},
}

// icmpError is an ICMP error about a packet, which it carries keep bytes of (0 = all of it).
type icmpError struct {
	srcMAC, dstMAC []byte
	src, dst       netip.Addr
	ttl            uint8
	kind           icmpKind
	about          frame
	keep           int
	shape          func([]byte) [][]byte // of the packet that it is about; nil: as it is
}

// bytes builds the message byte by byte, with the model's sums.
func (e icmpError) bytes(tb testing.TB) []byte {
	tb.Helper()
	about := e.about
	about.srcMAC, about.dstMAC = mac(), mac()
	whole := about.bytes(tb)
	if e.shape != nil {
		whole = e.shape(whole)[0]
	}
	inner := whole[ethLen:]
	if e.keep > 0 && e.keep < len(inner) {
		inner = inner[:e.keep]
	}
	family := 4
	if e.src.Is6() {
		family = 6
	}
	kind := pick(family, e.kind.v4, e.kind.v6)
	message := append([]byte{kind[0], kind[1], 0, 0}, binary.BigEndian.AppendUint32(nil, e.kind.rest)...)
	message = append(message, inner...)
	b := append(append(append([]byte{}, e.dstMAC...), e.srcMAC...), pick(family, []byte{8, 0}, []byte{0x86, 0xdd})...)
	if family == 4 {
		b = append(b, 0x45, 0xc0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(message)))
		b = append(b, 0x77, 0x77, 0, 0, e.ttl, protoICMP, 0, 0)
	} else {
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(message)))
		b = append(b, protoICM6, e.ttl)
	}
	b = append(append(b, e.src.AsSlice()...), e.dst.AsSlice()...)
	b = append(b, message...)
	if family == 4 {
		fixIPv4Sum(b)
	}
	fixL4Sum(b)
	return b
}

// keeps are how much of the packet an error may carry: 8 bytes of L4 (RFC 792), the
// whole header of TCP, an odd number of bytes, all.
func keeps(family int) []int {
	header := pick(family, 20, 40)
	return []int{header + 8, header + 20, header + 23, 0}
}

// eachError runs f for every kind of error and every length it may have.
func eachError(family int, f func(kind icmpKind, keep int)) {
	for _, kind := range icmpKinds {
		for _, keep := range keeps(family) {
			f(kind, keep)
		}
	}
}

// router is a host on the way to the client, who says that a packet does not get there.
func router(family int) netip.Addr { return pick(family, ip("198.51.100.77"), ip("2001:db8:77::1")) }

// toNode is a router's error about what left the node, before and after translation.
func (j *journey) toNode(kind icmpKind, keep int, sent string) (before, after icmpError) {
	before = icmpError{
		srcMAC: j.up.router, dstMAC: j.up.mac, src: router(j.family()), dst: j.outside.local.Addr(), ttl: 60,
		kind: kind, about: j.dress(j.outside.tx(sent)), keep: keep,
	}
	after = before
	after.dst, after.about = j.inside.local.Addr(), j.dress(j.inside.tx(sent))
	return before, after
}

func (j *journey) family() int {
	if j.inside.local.Addr().Is4() {
		return 4
	}
	return 6
}

// errorIn brings a router's error to the pod by the slow path.
func (j *journey) errorIn(kind icmpKind, keep int, sent string) {
	j.tb.Helper()
	before, after := j.toNode(kind, keep, sent)
	want := passes(after.bytes(j.tb))
	want.mark = j.mark
	b := j.step(uplIngress, j.up.name, before.bytes(j.tb), want)
	b = route(b, j.pod.gwMAC, j.pod.mac)
	j.step(podIngress, j.pod.name, b, passes(b))
}

// errorInFast brings one that must take the fast path.
func (j *journey) errorInFast(kind icmpKind, keep int, sent string) {
	j.tb.Helper()
	before, after := j.toNode(kind, keep, sent)
	after.ttl--
	after.srcMAC, after.dstMAC = j.pod.gwMAC, j.pod.mac
	j.step(uplIngress, j.up.name, before.bytes(j.tb), toPeer(j.pod, after.bytes(j.tb)))
}

// fromNode is an error about what came for the pod: from the pod itself or from the
// node's stack, before and after translation.
func (j *journey) fromNode(kind icmpKind, keep int, got string, byPod bool) (before, after icmpError) {
	before = icmpError{
		srcMAC: j.up.mac, dstMAC: j.up.router, src: j.up.addr(j.family()), dst: j.inside.remote.Addr(), ttl: 64,
		kind: kind, about: j.dress(j.inside.rx(got)), keep: keep,
	}
	if byPod {
		before.src = j.inside.local.Addr()
	}
	after = before
	after.about = j.dress(j.outside.rx(got))
	if byPod {
		after.src = j.outside.local.Addr()
	}
	return before, after
}

// errorOut sends the pod's error about a packet it got, or the node's.
func (j *journey) errorOut(kind icmpKind, keep int, got string, byPod bool) {
	j.tb.Helper()
	before, after := j.fromNode(kind, keep, got, byPod)
	if byPod {
		sent := before
		sent.srcMAC, sent.dstMAC, sent.ttl = j.pod.mac, j.pod.gwMAC, 65
		want := passes(sent.bytes(j.tb))
		want.mark = j.mark
		j.step(podEgress, j.pod.name, sent.bytes(j.tb), want)
	}
	j.step(uplEgress, j.up.name, before.bytes(j.tb), passes(after.bytes(j.tb)))
}

// Errors about a masqueraded flow find the pod, and its own errors find the server.
func TestPrivilegedErrorsMasquerade(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(5)
		j := w.opens(family, proto, podA, movedPort, rolled(5))
		j.out("S")
		eachError(family, func(kind icmpKind, keep int) { j.errorIn(kind, keep, "S") })
		j.in("SA")
		eachError(family, func(kind icmpKind, keep int) {
			j.errorInFast(kind, keep, "PA")
			j.errorOut(kind, keep, "PA", true)
			j.errorOut(kind, keep, "PA", false)
		})
		j.outFast("PA") // the flow goes on as it was
		j.inFast("PA")
		w.wantFlows(2, 0)
	}, masquerading(podA))
}

// Errors about what a hostPort's pod answers, and about what its clients send.
func TestPrivilegedErrorsHostPort(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_admit_mark": admitMark})
	for _, family := range families {
		for _, p := range protocols[:2] {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				j := w.toHostPort(family, p.proto, podA)
				j.mark = admitMark
				j.in("S")
				eachError(family, func(kind icmpKind, keep int) {
					j.errorOut(kind, keep, "S", true)
					j.errorOut(kind, keep, "S", false)
					j.errorIn(kind, keep, "SA")
				})
				j.out("SA")
				j.inFast("A")
				eachError(family, func(kind icmpKind, keep int) {
					j.errorInFast(kind, keep, "PA")
					j.errorOut(kind, keep, "PA", true)
					j.errorOut(kind, keep, "PA", false)
				})
				j.outFast("PA")
				j.inFast("PA")
				w.wantFlows(1, 0)
			}, admitting(epMasquerade, podA), publishing(mapping(family, p.proto, podA)))
		}
	}
}

// A UDP checksum of 0 in the packet that an error is about stays 0.
func TestPrivilegedErrorsNoUDPChecksum(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.in("")
			j.out("")
			j.inFast("")
			j.noSum = true
			eachError(family, func(kind icmpKind, keep int) {
				j.errorInFast(kind, keep, "")
				j.errorOut(kind, keep, "", true)
			})
		}, publishing(mapping(family, udp, podA)))
	}
}

// Of a packet without a checksum that covers the addresses, an error changes the addresses only: SCTP's ports, the SPI of ESP and the lengths
// of others come back as they were sent.
func TestPrivilegedErrorsBareProtocols(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, p := range bareProtocols {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				j := w.opens(family, udp, podA, keptPort, keptPort)
				j.slowPathOut(bare(p.number))
				eachError(family, func(kind icmpKind, keep int) {
					before, after := j.toNode(kind, keep, "")
					before.shape, after.shape = bare(p.number), bare(p.number)
					b := w.step(uplIngress, upl0.name, before.bytes(t), passes(after.bytes(t)))
					w.step(podIngress, podA.name, route(b, podA.gwMAC, podA.mac), passes(route(b, podA.gwMAC, podA.mac)))
					before, after = j.fromNode(kind, keep, "", true)
					before.shape, after.shape = bare(p.number), bare(p.number)
					w.step(uplEgress, upl0.name, before.bytes(t), passes(after.bytes(t)))
				})
			}, masquerading(podA))
		}
	}
}

// IP options in the packet that an error is about move its ports.
func TestPrivilegedErrorsInnerOptions(t *testing.T) {
	fx := newFixture(t, nil)
	for _, p := range protocols {
		fx.each(t, p.name, func(w *walk) {
			j := w.opens(4, p.proto, podA, movedPort, rolled(5))
			w.rolls(5)
			j.answered()
			j.options = []byte{7, 7, 4, 0, 0, 0, 0, 0}
			j.errorInFast(icmpKinds[2], 28+8, "PA")
			j.errorOut(icmpKinds[2], 28+8, "PA", true)
		}, masquerading(podA))
	}
}

// Nothing changes in an error about what was not translated, not ours, or not to be told.
func TestPrivilegedErrorsUntouched(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		plain := w.plain(family, proto, podB, keptPort)
		plain.answered()
		eachError(family, func(kind icmpKind, keep int) {
			plain.errorIn(kind, keep, "PA")
			plain.errorOut(kind, keep, "PA", true)
			plain.errorOut(kind, keep, "PA", false)
			plain.errorOut(kind, keep, "PA", true)
		})
		// The node's own connections, and a flow that is over.
		j := w.opens(family, proto, podA, keptPort, keptPort)
		before, _ := j.toNode(icmpKinds[0], 0, "PA")
		w.step(uplIngress, upl0.name, before.bytes(t), untouched(before.bytes(t)))
		// Addressed to one, about another.
		j.answered()
		before, _ = j.toNode(icmpKinds[0], 0, "PA")
		before.dst = pick(family, second4, second6)
		w.step(uplIngress, upl0.name, before.bytes(t), untouched(before.bytes(t)))
		// A later fragment has no ports to be found by.
		before, _ = j.toNode(icmpKinds[0], 0, "PA")
		b := before.bytes(t)
		if family == 4 {
			b[ethLen+20+8+7] = 185
			fixIPv4Sum(b[20+8:])
			fixL4Sum(b)
			w.step(uplIngress, upl0.name, b, untouched(b))
		}
		// Nothing of the packet in it.
		before, _ = j.toNode(icmpKinds[0], pick(family, 20, 40)+7, "PA")
		w.step(uplIngress, upl0.name, before.bytes(t), untouched(before.bytes(t)))
	}, masquerading(podA))
}

// What a masqueraded pod says of an unknown connection does not leave: it
// would show the pod's address, and no host could tell what it means.
func TestPrivilegedErrorsOrphan(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, orphan, masquerading(podA))
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podB, keptPort, keptPort) // not masqueraded
		before, _ := j.fromNode(icmpKinds[0], 0, "PA", true)
		w.step(uplEgress, upl0.name, before.bytes(t), passes(before.bytes(t)))
	}, masquerading(podA))
	// To another pod's packet it may not speak at all.
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podB, keptPort, keptPort)
		j.answered()
		before, _ := j.fromNode(icmpKinds[0], 0, "PA", true)
		before.src = podA.addr(family)
		w.step(uplEgress, upl0.name, before.bytes(t), wantDrop(reasonOrphan, podA))
	}, masquerading(podA, podB))
}

func orphan(w *walk, family, proto int) {
	w.tb.Helper()
	j := w.opens(family, proto, podA, keptPort, keptPort)
	eachError(family, func(kind icmpKind, keep int) {
		before, _ := j.fromNode(kind, keep, "PA", true)
		w.step(uplEgress, upl0.name, before.bytes(w.tb), wantDrop(reasonOrphan, podA))
	})
}
