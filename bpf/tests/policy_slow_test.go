// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

var broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// hidden are ways to keep a connection's ports from a reader of one packet: in the second fragment, or behind more headers
// than anybody walks.
func hidden(family int) map[string]func([]byte) []byte {
	tiny := func(raw []byte) []byte {
		p := read(raw)
		return fragment(p, 0, p.raw[p.l4:p.l4+8], true)
	}
	if family == 4 {
		return map[string]func([]byte) []byte{"tiny": tiny}
	}
	return map[string]func([]byte) []byte{
		"tiny": tiny,
		"many": func(raw []byte) []byte {
			for range 9 {
				raw = extension(60, 0, 0, 1, 4, 0, 0, 0, 0)(raw)
			}
			return raw
		},
		"fragmented headers": func(raw []byte) []byte {
			header := extension(44, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef)(raw[:ethLen+40])
			header[ethLen+40] = 60
			b := append(header, read(raw).proto, 0, 1, 4, 0, 0, 0, 0)
			b[ethLen+5] = 16
			return b
		},
	}
}

// No host gets past a rule about ports by a packet that does not show them, in either direction.
func TestPrivilegedPolicyHiddenPorts(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for name, shape := range hidden(family) {
			fx.each(t, fmt.Sprint(name, family), policed(func(w *walk) {
				w.police(podA, 7, policy.ModeOpen, `{"ingress":[{"action":"deny","protocol":"tcp","ports":[`+fmt.Sprint(podPort)+`]}],
					"egress":[{"action":"deny","protocol":"tcp","ports":[`+fmt.Sprint(serverTCP)+`]}]}`)
				in := w.toPod(family, tcp).inside.rx("S")
				in.srcMAC, in.dstMAC = podA.gwMAC, podA.mac
				w.stepInput(podIngress, podA.name, input{data: shape(in.bytes(t)), badSums: true}, wantDrop(reasonOpaque, podA))
				out := w.opens(family, tcp, podA, keptPort, keptPort).inside.tx("S")
				out.srcMAC, out.dstMAC = podA.mac, podA.gwMAC
				want := wantDrop(reasonOpaque, podA)
				w.stepInput(podEgress, podA.name, input{data: shape(out.bytes(t)), badSums: true}, want)
				w.police(podA, 8, policy.ModeIsolated, "") // which is about addresses
				b := shape(in.bytes(t))
				w.stepInput(podIngress, podA.name, input{data: b, badSums: true}, passes(b))
			}))
		}
	}
}

// What looks like neighbour discovery and cannot be any is bound like everything else.
func TestPrivilegedPolicyFalseNeighbour(t *testing.T) {
	fx := newFixture(t, nil)
	sent := func(w *walk, family int, to netip.Addr, ttl uint8, shape func([]byte) []byte) input {
		f := conn{proto: echo, local: at(podA.addr(family), 7), remote: at(to, 0)}.tx("")
		f.srcMAC, f.dstMAC, f.ttl = podA.mac, podA.gwMAC, ttl
		return input{data: shape(f.bytes(w.tb)), badSums: true}
	}
	refused := wantDrop(reasonEgress, podA)
	// ICMPv6 in IPv4 is nothing, but reaches a process that opens a raw socket for it.
	fx.each(t, "ipv4", policed(func(w *walk) {
		w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
		w.stepInput(podEgress, podA.name, sent(w, 4, client4, 255, func(raw []byte) []byte {
			b := protocol(protoICM6)(raw)
			b[read(b).l4] = 135
			return b
		}), refused)
	}))
	onLink := []netip.Addr{ip("ff02::1"), ip("fe80::1"), gateway6, podB.addr6, ip("fd00:1::77")}
	for _, tt := range []struct {
		kind   byte
		ttl    uint8
		to     []netip.Addr
		passes bool
	}{
		{135, 255, onLink, true},
		{133, 255, onLink, true},
		{135, 255, []netip.Addr{client6, podC.addr6, ip("ff05::1"), ip("ff0e::1")}, false}, // the node would route it
		{133, 255, []netip.Addr{client6}, false},
		{143, 1, onLink, true},
		{130, 1, onLink, true},
		{135, 64, onLink, false},
		{133, 1, onLink, false},
		{143, 64, onLink, false},
		{132, 255, onLink, false},
	} {
		for _, to := range tt.to {
			fx.each(t, fmt.Sprint(tt.kind, "-", tt.ttl, "-", to), policed(func(w *walk) {
				w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
				in, want := sent(w, 6, to, tt.ttl, icmp(0, tt.kind)), refused
				if tt.passes {
					want = passes(in.data)
				}
				w.stepInput(podEgress, podA.name, in, want)
			}))
		}
	}
	for _, to := range append(onLink, client6) {
		fx.each(t, fmt.Sprint("advertisement to ", to), policed(func(w *walk) {
			w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
			b := discover(t, neighbourAdvert, podA.addr6, to, podA.addr6, 255)
			want := passes(b)
			if to == client6 {
				want = refused
			}
			w.stepInput(podEgress, podA.name, input{data: b}, want)
		}))
	}
}

// A pod without a policy and an isolated one of its bridge do not meet by their link-local addresses either. The isolated one's own hook
// refuses: if the node routes a packet back out of the bridge, the other end cannot tell who has sent it.
func TestPrivilegedPolicyIsolatedLinkLocal(t *testing.T) {
	fx := newFixture(t, nil)
	for _, proto := range []int{tcp, udp, echo} {
		fx.each(t, protoName(proto), func(w *walk) {
			w.police(podB, 7, policy.ModeIsolated, "")
			for _, dst := range []string{"fe80::b", podB.addr(6).String()} {
				p := w.talk(6, proto, podA, podB)
				p.local, p.remote = at(ip("fe80::a"), p.local.Port()), at(ip(dst), p.remote.Port())
				b := p.sent("S").bytes(w.tb)
				w.stepInput(podEgress, podA.name, input{data: b}, untouched(b))
				w.stepInput(podIngress, podB.name, input{data: b, came: podA.name}, wantDrop(reasonIsolated, podB))
			}
			q := w.talk(6, proto, podB, podA)
			q.local, q.remote = at(ip("fe80::b"), q.local.Port()), at(ip("fe80::a"), q.remote.Port())
			b := q.sent("S").bytes(w.tb)
			w.stepInput(podEgress, podB.name, input{data: b}, wantDrop(reasonIsolated, podB))
			w.stepInput(podIngress, podA.name, input{data: b, came: podB.name}, wantDrop(reasonIsolated, podA))
			w.police(podB, 8, policy.ModeIsolated, `{"egress":[{"action":"allow"}],"egressDefault":"deny"}`) // which is not asked
			w.stepInput(podEgress, podB.name, input{data: b}, wantDrop(reasonIsolated, podB))
			w.police(podC, 7, policy.ModeIsolated, "") // a link that has the node only
			w.stepInput(podEgress, podC.name, input{data: b}, untouched(b))
			w.stepInput(podIngress, podC.name, input{data: b, came: upl0.name}, untouched(b)) // not from a pod
			nd := icmp(0, 135)(w.talk(6, echo, podB, podA).sent("").bytes(w.tb))
			nd[ethLen+7] = 255
			w.stepInput(podIngress, podA.name, input{data: nd, came: podB.name, badSums: true}, passes(nd))
		})
	}
}

// An index that a former pod with the address has left says nothing of the packets of the next one.
func TestPrivilegedPolicyForeignIndex(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
		j := w.toPod(family, proto)
		w.put(proven, j.inside.tuple(), &bpfgen.TypesSlCtEntry{
			Flags: uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE | bpfgen.TypesSlCtFlagSL_CT_HAIRPIN), Owner: podC.owner, Other: j.inside.tuple(),
		})
		j.refusedIn("S", reasonIngress)
	}))
}

// discovery are the packets of a host that looks for its address, from a to everybody.
func discovery(tb testing.TB, family int, a *pod) map[string]input {
	tb.Helper()
	if family == 4 {
		f := conn{proto: udp, local: at(unspecified(4), 68), remote: at(ip("255.255.255.255"), 67)}.tx("")
		f.srcMAC, f.dstMAC = a.mac, broadcastMAC
		return map[string]input{"dhcp": {data: f.bytes(tb)}}
	}
	out := map[string]input{}
	for name, x := range map[string]struct {
		kind byte
		to   string
		ttl  uint8
	}{"neighbour": {135, "ff02::1:ff00:5", 255}, "router": {133, "ff02::2", 255}, "listener": {143, "ff02::16", 1}, "listener v1": {131, "ff02::5", 1}} {
		f := conn{proto: echo, local: at(unspecified(6), 7), remote: at(ip(x.to), 0)}.tx("")
		f.srcMAC, f.dstMAC, f.ttl = a.mac, broadcastMAC, x.ttl
		out[name] = input{data: icmp(0, x.kind)(f.bytes(tb)), badSums: true}
	}
	return out
}

// others are packets without a source that no host needs: to the pod b, and to everybody.
func others(tb testing.TB, family int, a, b *pod) map[string]input {
	tb.Helper()
	out := map[string]input{}
	for where, to := range map[string]netip.Addr{"unicast": b.addr(family), "multicast": pick(family, ip("224.0.0.251"), ip("ff02::fb")), "everybody": pick(family, ip("255.255.255.255"), ip("ff02::1"))} {
		for _, proto := range []int{tcp, udp, echo} {
			f := conn{proto: proto, local: at(unspecified(family), 68), remote: at(to, 5353)}.tx("S")
			f.srcMAC, f.dstMAC = a.mac, b.mac
			out[fmt.Sprint(where, " ", protoName(proto))] = input{data: f.bytes(tb)}
		}
	}
	f := conn{proto: udp, local: at(unspecified(family), 68), remote: at(b.addr(family), 68)}.tx("")
	f.srcMAC, f.dstMAC = a.mac, b.mac
	out["fragment"] = input{data: fragment(read(f.bytes(tb)), 64, make([]byte, 64), false), badSums: true}
	if family == 6 { // as neighbour discovery never is
		f := conn{proto: echo, local: at(unspecified(6), 7), remote: at(ip("ff02::1:ff00:5"), 0)}.tx("")
		f.srcMAC, f.dstMAC, f.ttl = a.mac, b.mac, 64
		out["forwarded neighbour"] = input{data: icmp(0, 135)(f.bytes(tb)), badSums: true}
	}
	return out
}

// A host that looks for its address asks everybody, by DHCP, neighbour discovery and MLD. Other packets without a source are spoofed,
// with a policy and without.
func TestPrivilegedWithoutSource(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, police := range []bool{false, true} {
			fx.each(t, fmt.Sprint(family, police), policed(func(w *walk) {
				if police {
					w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
				}
				for _, in := range discovery(t, family, podA) {
					w.stepInput(podEgress, podA.name, in, untouched(in.data))
				}
				for _, in := range others(t, family, podA, podB) {
					w.stepInput(podEgress, podA.name, in, wantDrop(reasonIP, podA))
				}
			}))
		}
	}
}

// Without anti-spoofing the pod's rules decide about such packets.
func TestPrivilegedPolicyWithoutSource(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_anti_spoof": 0})
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), policed(func(w *walk) {
			w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
			for _, in := range discovery(t, family, podA) {
				w.stepInput(podEgress, podA.name, in, untouched(in.data))
			}
			for _, in := range others(t, family, podA, podB) {
				w.stepInput(podEgress, podA.name, in, wantDrop(reasonEgress, podA))
			}
		}))
	}
}

// An isolated pod gets no packet without a source, whether its sender's device has programs or not. What a link needs it gets.
func TestPrivilegedPolicyIsolatedWithoutSource(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, came := range []string{podA.name, upl0.name} {
			fx.each(t, fmt.Sprint(family, came), func(w *walk) {
				w.came = came
				w.police(podB, 7, policy.ModeIsolated, "")
				for _, in := range others(t, family, podA, podB) {
					in.came = came
					w.stepInput(podIngress, podB.name, in, wantDrop(reasonIsolated, podB))
				}
				for _, in := range discovery(t, family, podA) {
					in.came = came
					w.stepInput(podIngress, podB.name, in, untouched(in.data))
				}
			})
		}
	}
}

// On a device inside a pod's namespace the same holds, in both directions.
func TestPrivilegedPolicyPodNSWithoutSource(t *testing.T) {
	fx := newFixture(t, nil)
	const number = 5
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			pol := w.putPolicy(7, policy.ModeOpen, `{"egressDefault":"deny","ingressDefault":"deny"}`)
			w.put("sl_ep_stats", podns.Key(number), make([]bpfgen.TypesSlEndpointStats, ebpf.MustPossibleCPU()))
			defer w.remove("sl_ep_stats", podns.Key(number))
			w.put("sl_dev_policy", podns.Key(number), policymap.NewPoliced(podA.owner, 0, 7, pol))
			w.put("sl_ns_devices", uint32(number), &bpfgen.TypesSlPodnsDevice{Owner: podA.owner})
			defer w.remove("sl_ns_devices", uint32(number))
			w.number = number
			for h, reason := range map[hook]drops.Reason{ownEgress: reasonEgress, ownIngress: reasonIngress} {
				for _, in := range discovery(t, family, podA) {
					w.stepInput(h, podB.name, in, untouched(in.data))
				}
				for _, in := range others(t, family, podA, podB) {
					w.stepInput(h, podB.name, in, want{verdict: shot, reason: reason})
				}
			}
		})
	}
}
