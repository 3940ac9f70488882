// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const (
	reasonNoAddr  = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NO_SNAT_ADDR)
	reasonPorts   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SNAT_PORTS)
	reasonUnasked = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_UNASKED)

	// The defaults of bpf/lib/base/config.h.
	snatMin1, snatMax1 = 61000, 65535
	snatMin2, snatMax2 = 1024, 32767

	keptPort  = 61500 // kept when it is free, as every port is
	movedPort = 40000 // never free: the walk reserves it
	serverTCP = 443
)

// rolled is the port that the first draw gives after w.rolls(n).
func rolled(n uint32) uint16 { return uint16(snatMin1 + (n+1)%(snatMax1-snatMin1+1)) }

// opens is a connection that a pod opens to the client's host, masqueraded behind
// upl0 with the given port.
func (w *walk) opens(family, proto int, p *pod, port, outsidePort uint16) *journey {
	c := conn{proto: proto, remote: at(client(family), serverTCP)}
	return &journey{
		walk: w, pod: p, up: upl0,
		inside: c.as(at(p.addr(family), port)), outside: c.as(at(upl0.addr(family), outsidePort)),
	}
}

// plain is the same connection without masquerade.
func (w *walk) plain(family, proto int, p *pod, port uint16) *journey {
	j := w.opens(family, proto, p, port, port)
	j.outside = j.inside
	return j
}

// eachProtocol runs a walk for both families, TCP, UDP and echo, and every state of a packet.
func eachProtocol(t *testing.T, fx *fixture, f func(w *walk, family, proto int), opts ...option) {
	t.Helper()
	for _, family := range families {
		for _, p := range protocols {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) { f(w, family, p.proto) }, opts...)
		}
	}
}

// answered opens a connection and leaves it on the fast path.
func (j *journey) answered() {
	j.tb.Helper()
	j.out("S")
	j.in("SA")
	j.outFast("A")
	j.inFast("PA")
}

func TestPrivilegedMasquerade(t *testing.T) {
	for _, fibSource := range []uint32{0, 1} {
		fx := newFixture(t, map[string]uint32{"cfg_fib_src": fibSource})
		for _, port := range []struct {
			name      string
			own, seen uint16
		}{
			{"kept", keptPort, keptPort}, {"first", snatMin1, snatMin1}, {"last", snatMax2, snatMax2}, {"moved", movedPort, rolled(9)},
			{"node's ephemeral", 40001, 40001}, {"NFS", 700, 700}, {"IKE", 500, 500}, {"NTP", 123, 123}, {"lowest", 1, 1}, {"highest", 65535, 65535},
		} {
			t.Run(fmt.Sprintf("fib%d/%s", fibSource, port.name), func(t *testing.T) {
				eachProtocol(t, fx, func(w *walk, family, proto int) {
					w.rolls(9)
					masquerade(w.opens(family, proto, podA, port.own, port.seen))
				}, masquerading(podA))
			})
		}
	}
}

func masquerade(j *journey) {
	j.tb.Helper()
	const opened = flowPodOpened | flowSNAT | flowTXFirst | flowTXConfirm
	j.out("S")
	f := j.wantFlow(unproven, j.inside, opened)
	if f.Owner != j.pod.owner || int(f.OutIfindex) != j.index(j.up.name) || f.Other != j.outside.tuple() {
		j.tb.Errorf("record of the opening: %+v", f)
	}
	j.wantIndex(unproven, j.outside, j.inside)
	j.wantFlows(0, 2)
	j.out("S") // once more: the same port
	j.in("SA")
	j.wantFlow(proven, j.inside, opened|flowConfirmed|flowReplied|flowAssured)
	j.wantIndex(proven, j.outside, j.inside)
	for range 3 {
		j.outFast("PA")
		j.inFast("PA")
	}
	f = j.wantFlow(proven, j.inside, opened|flowConfirmed|flowReplied|flowAssured)
	if f.TxPackets != 5 || f.RxPackets != 4 {
		j.tb.Errorf("flow counted %d out, %d in, want 5, 4", f.TxPackets, f.RxPackets)
	}
	j.wantFlows(2, 0)
}

// By the other uplink, with its address.
func TestPrivilegedMasqueradeOtherUplink(t *testing.T) {
	for _, fibSource := range []uint32{0, 1} {
		fx := newFixture(t, map[string]uint32{"cfg_fib_src": fibSource})
		t.Run(fmt.Sprintf("fib%d", fibSource), func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				j := w.opens(family, proto, podA, keptPort, keptPort)
				j.up = upl1
				j.inside.remote = at(pick(family, far4, far6), serverTCP)
				j.outside = j.inside.as(at(upl1.addr(family), keptPort))
				j.answered()
			}, masquerading(podA))
		})
	}
}

// What the FIB prefers as source comes before the uplink's first address.
func TestPrivilegedMasqueradeFIBSource(t *testing.T) {
	t.Run("asked", func(t *testing.T) {
		require.FIBSource(t)
		fx := newFixture(t, map[string]uint32{"cfg_fib_src": 1})
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			// An entry that the FIB's answer must win over.
			w.put("sl_uplinks", uint32(w.index("upl0")), &bpfgen.TypesSlUplink{Src4: codec.Addr(second4), Src6: codec.Addr(second6)})
			w.opens(family, proto, podA, keptPort, keptPort).answered()
		}, masquerading(podA))
	})
	off := newFixture(t, nil)
	eachProtocol(t, off, func(w *walk, family, proto int) {
		w.put("sl_uplinks", uint32(w.index("upl0")), &bpfgen.TypesSlUplink{Src4: codec.Addr(second4), Src6: codec.Addr(second6)})
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.outside = j.outside.as(at(pick(family, second4, second6), keptPort))
		j.answered()
	}, masquerading(podA))
}

// Destinations that keep the pod's address.
func TestPrivilegedNotMasqueraded(t *testing.T) {
	fx := newFixture(t, nil)
	tests := []struct {
		name   string
		v4, v6 string
		masq   bool
	}{
		{name: "own subnet", v4: "10.1.77.9", v6: "fd00:1::77:9"},
		{name: "beside own subnet", v4: "10.2.0.1", v6: "fd00:1:0:1::1", masq: true},
		{name: "multicast", v4: "224.0.0.251", v6: "ff02::fb"},
		{name: "last multicast", v4: "239.255.255.255", v6: "ffff::1"},
		{name: "after multicast", v4: "240.0.0.1", v6: "fec0::1", masq: true},
		{name: "before multicast", v4: "223.255.255.255", v6: "2001::1", masq: true},
		{name: "limited broadcast and link", v4: "255.255.255.255", v6: "fe80::1"},
		{name: "exempt", v4: "172.16.5.5", v6: "2001:db8:5::5"},
		{name: "beside exempt", v4: "172.16.6.1", v6: "2001:db8:6::1", masq: true},
		{name: "exempt host", v4: "172.17.0.1", v6: "2001:db8:7::1"},
		{name: "beside exempt host", v4: "172.17.0.2", v6: "2001:db8:7::2", masq: true},
	}
	exempt := notMasqueraded("172.16.5.0/24", "2001:db8:5::/48", "172.17.0.1/32", "2001:db8:7::1/128")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				j := w.opens(family, proto, podA, keptPort, keptPort)
				j.inside.remote = at(ip(pick(family, test.v4, test.v6)), serverTCP)
				j.outside.remote = j.inside.remote
				flags := flowPodOpened | flowTXFirst | flowTXConfirm
				if test.masq {
					flags |= flowSNAT
				} else {
					j.outside = j.inside
				}
				j.out("S")
				w.wantFlow(unproven, j.inside, flags)
			}, masquerading(podA), exempt)
		})
	}
}

// A network of IPv6 that has the v4-mapped addresses too says nothing about IPv4.
func TestPrivilegedNotMasqueradedFamilies(t *testing.T) {
	fx := newFixture(t, nil)
	for _, exempt := range []string{"::/0", "::/80"} {
		t.Run(exempt, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				j := w.opens(family, proto, podA, keptPort, keptPort)
				flags := flowPodOpened | flowTXFirst | flowTXConfirm | flowSNAT
				if family == 6 && exempt == "::/0" {
					j.outside = j.inside
					flags &^= flowSNAT
				}
				j.out("S")
				w.wantFlow(unproven, j.inside, flags)
			}, masquerading(podA), notMasqueraded(exempt))
		})
	}
}

// A pod without the feature keeps its address, and takes the fast path.
func TestPrivilegedPlain(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.plain(family, proto, podB, keptPort)
		j.out("S")
		w.wantFlow(unproven, j.inside, flowPodOpened|flowTXFirst|flowTXConfirm)
		j.in("SA")
		j.outFast("PA")
		j.inFast("PA")
		w.wantFlow(proven, j.inside, flowPodOpened|flowConfirmed|flowReplied|flowAssured)
		w.wantFlows(1, 0)
	}, masquerading(podA))
}

// inbound is a connection that the client opens to the pod's own address.
func (w *walk) inbound(family, proto int, p *pod) *journey {
	c := conn{proto: proto, local: at(p.addr(family), podPort), remote: at(client(family), clientPort), remoteAsks: true}
	return &journey{walk: w, pod: p, up: upl0, inside: c, outside: c}
}

// The answers of a connection to the pod's own address keep that address.
func TestPrivilegedInbound(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.inbound(family, proto, podA)
		j.in("S")
		w.wantFlow(unproven, j.inside, flowRXFirst|flowRXConfirm)
		j.out("SA")
		j.inFast("A")
		j.outFast("PA")
		w.wantFlow(proven, j.inside, flowConfirmed|flowReplied|flowAssured)
	}, masquerading(podA))
}

// Two pods ask one server from one port.
func TestPrivilegedMasqueradeCollision(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(20)
		a := w.opens(family, proto, podA, keptPort, keptPort)
		b := w.opens(family, proto, podB, keptPort, rolled(20))
		a.out("S")
		b.out("S")
		b.in("SA")
		a.in("SA")
		for range 2 {
			a.outFast("PA")
			b.outFast("PA")
			b.inFast("PA")
			a.inFast("PA")
		}
		// Toward another server the port is free.
		c := w.opens(family, proto, podB, keptPort, keptPort)
		c.inside.remote = at(pick(family, ip("203.0.113.10"), ip("2001:db8:9::10")), serverTCP)
		c.outside.remote = c.inside.remote
		c.answered()
	}, masquerading(podA, podB))
}

// Ports that others have: published, reserved, or with a socket of the node.
func TestPrivilegedMasqueradeTakenPorts(t *testing.T) {
	fx := newFixture(t, nil)
	tests := []struct {
		name   string
		take   func(w *walk, family, proto int, port uint16) (release func())
		protos []int
	}{
		{"hostPort", func(w *walk, family, proto int, port uint16) func() {
			w.publish(published{host: at(unspecified(family), port), proto: uint8(proto), pod: podC, port: 1, gen: 1})
			return func() {}
		}, []int{tcp, udp}},
		{"hostPort with hostIP", func(w *walk, family, proto int, port uint16) func() {
			w.publish(published{host: at(upl0.addr(family), port), proto: uint8(proto), pod: podC, port: 1, gen: 1})
			return func() {}
		}, []int{tcp, udp}},
		{"reserved", func(w *walk, _, _ int, port uint16) func() {
			w.keepPorts(int(port), int(port))
			return func() {}
		}, []int{tcp, udp, echo}},
		{"bound socket", func(w *walk, family, proto int, port uint16) func() {
			return w.mustHostSocket(proto, at(upl0.addr(family), port), netip.AddrPort{})
		}, []int{tcp, udp}},
		{"bound to any", func(w *walk, family, proto int, port uint16) func() {
			return w.mustHostSocket(proto, at(unspecified(family), port), netip.AddrPort{})
		}, []int{tcp, udp}},
		{"connected socket", func(w *walk, family, proto int, port uint16) func() {
			return w.mustHostSocket(proto, at(upl0.addr(family), port), at(client(family), serverTCP))
		}, []int{tcp, udp}},
	}
	for _, test := range tests {
		for _, family := range families {
			for _, proto := range test.protos {
				fx.each(t, fmt.Sprintf("%s/%d/%d", test.name, proto, family), func(w *walk) {
					w.rolls(30)
					// The pod's own port is taken, and so are the first two places drawn.
					for _, port := range []uint16{keptPort, rolled(30), rolled(31)} {
						defer test.take(w, family, proto, port)()
					}
					w.opens(family, proto, podA, keptPort, rolled(32)).answered()
				}, masquerading(podA))
			}
		}
	}
}

// A privileged port that is not free gets another one of its class, as netfilter has them; any other port never gets a privileged one.
func TestPrivilegedMasqueradePrivilegedPorts(t *testing.T) {
	fx := newFixture(t, nil)
	for _, test := range []struct {
		own, seen uint16
	}{
		{700, 600 + 9 + 1}, {512, 600 + 9 + 1}, {1023, 600 + 9 + 1}, {511, 1 + 9 + 1}, {123, 1 + 9 + 1}, {1, 1 + 9 + 1},
		{1024, rolled(9)}, {8080, rolled(9)},
	} {
		t.Run(fmt.Sprint(test.own), func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				w.rolls(9)
				w.opens(family, proto, podA, test.own, test.own).answered()
				w.opens(family, proto, podB, test.own, test.seen).answered()
			}, masquerading(podA, podB))
		})
	}
}

// Not even a class without a free port leaves a connection without one.
func TestPrivilegedMasqueradePrivilegedPortsFull(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(9)
		w.keepPorts(1, 1023)
		w.opens(family, proto, podA, 700, rolled(9+16)).answered()
		w.opens(family, proto, podB, 123, rolled(9+17)).answered()
	}, masquerading(podA, podB))
}

// Source port 0 (RFC 768: none) would take the answer's way: it gets a port of the ranges, not a privileged one.
func TestPrivilegedMasqueradePortZero(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			w.rolls(9)
			w.opens(family, udp, podA, 0, rolled(9)).answered()
		}, masquerading(podA))
	}
}

// A socket of the node that is connected to another host does not stand in the way.
func TestPrivilegedMasqueradeOtherSocket(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, p := range protocols[:2] {
			fx.each(t, fmt.Sprintf("%s%d", p.name, family), func(w *walk) {
				defer w.mustHostSocket(p.proto, at(upl0.addr(family), keptPort), at(client(family), serverTCP+1))()
				w.opens(family, p.proto, podA, keptPort, keptPort).answered()
			}, masquerading(podA))
		}
	}
}
