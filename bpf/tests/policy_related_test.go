// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const denyAll = `{"ingressDefault":"deny","egressDefault":"deny"}`

// atPod gives podA's hook of a direction a packet: refused for the reason, or passed for 0.
func (w *walk) atPod(h hook, data []byte, reason drops.Reason) {
	w.tb.Helper()
	want := passes(data)
	if reason != 0 {
		want = wantDrop(reason, podA)
		want.uncounted = h == podIngress // what the pod sends is counted first
	}
	w.stepInput(h, podA.name, input{data: data, badSums: true}, want)
}

// Rules know an ICMP error by the connection that it is about. Without one it is an ICMP message like others.
func TestPrivilegedPolicyErrors(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, proto := range []int{tcp, udp} {
			fx.each(t, fmt.Sprintf("%s%d", protoName(proto), family), policed(func(w *walk) {
				out, in := w.plain(family, proto, podA, keptPort), w.toPod(family, proto)
				arriving := icmpError{srcMAC: podA.gwMAC, dstMAC: podA.mac, src: router(family), dst: podA.addr(family), ttl: 60, kind: icmpKinds[2], about: out.inside.tx("S")}.bytes(t)
				sent := icmpError{srcMAC: podA.mac, dstMAC: podA.gwMAC, src: podA.addr(family), dst: client(family), ttl: 64, kind: icmpKinds[1], about: in.inside.rx("S")}.bytes(t)
				w.police(podA, 7, policy.ModeOpen, denyAll)
				w.atPod(podIngress, arriving, reasonIngress)
				w.atPod(podEgress, sent, reasonEgress)
				w.police(podA, 8, policy.ModeIsolated, "") // no rules, so nothing forbids ICMP
				w.atPod(podIngress, arriving, 0)
				w.atPod(podEgress, sent, 0)
				w.police(podA, 9, policy.ModeOpen, onlyTo("egress", proto, client(family), serverTCP))
				out.out("S")
				w.atPod(podIngress, arriving, 0)
				w.atPod(podEgress, sent, reasonEgress)
				w.police(podA, 10, policy.ModeOpen, onlyTo("ingress", proto, client(family), podPort))
				arrived := in.inside.rx("S")
				arrived.srcMAC, arrived.dstMAC = in.up.router, in.up.mac
				w.step(uplIngress, in.up.name, arrived.bytes(t), passes(arrived.bytes(t)))
				w.atPod(podEgress, sent, reasonEgress) // not admitted yet
				w.atPod(podIngress, in.inside.rx("S").routed(podA.gwMAC, podA.mac).bytes(t), 0)
				w.atPod(podEgress, sent, 0)
			}))
		}
	}
}

// Under rules a later fragment belongs to a first one that they admitted.
func TestPrivilegedPolicyFragments(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, h := range []hook{podIngress, podEgress} {
			fx.each(t, fmt.Sprint(h, family), policed(func(w *walk) {
				c := conn{proto: udp, local: at(podA.addr(family), podPort), remote: at(client(family), serverTCP)}
				direction, end, reason := "ingress", uint16(podPort), reasonIngress
				build := func(c conn) [][]byte {
					f := c.rx("")
					f.srcMAC, f.dstMAC = podA.gwMAC, podA.mac
					if h == podEgress {
						f = c.tx("")
						f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
					}
					f.payload = make([]byte, 200)
					return fragments(f.bytes(t), 3)
				}
				if h == podEgress {
					direction, end, reason = "egress", serverTCP, reasonEgress
				}
				all := build(c)
				w.police(podA, 7, policy.ModeOpen, onlyTo(direction, udp, client(family), end))
				w.atPod(h, all[1], reasonOpaque)
				for _, b := range all {
					w.atPod(h, b, 0)
				}
				w.police(podA, 8, policy.ModeIsolated, "") // no rules: fragments in any order
				w.empty("sl_frags")
				w.atPod(h, all[2], 0)
				w.police(podA, 9, policy.ModeOpen, denyAll)
				for _, b := range all {
					w.atPod(h, b, reason)
				}
			}))
		}
	}
}

// A datagram that the ingress rules deny says nothing of the pod's own: those leave, masqueraded, and are answered.
func TestPrivilegedPolicyDeniedDatagram(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint("own address", family), policed(func(w *walk) {
			w.police(podA, 7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
			direct := w.plain(family, udp, podA, keptPort)
			w.step(uplIngress, direct.up.name, direct.arriving(), passes(direct.arriving()))
			direct.refusedIn("", reasonIngress)
			j := w.opens(family, udp, podA, keptPort, keptPort)
			j.out("")
			j.in("")
			j.outFast("")
			j.inFast("")
		}), masquerading(podA))
		fx.each(t, fmt.Sprint("hostPort", family), policed(func(w *walk) {
			w.police(podA, 7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
			in := w.toHostPort(family, udp, podA)
			toPod := in.inside.rx("")
			toPod.srcMAC, toPod.dstMAC = in.up.router, in.up.mac
			w.step(uplIngress, in.up.name, in.arriving(), passes(toPod.bytes(t)))
			in.refusedIn("", reasonIngress)
			j := in
			j.outside.local = at(upl0.addr(family), podPort)
			j.out("")
			j.in("")
			j.outFast("")
			j.inFast("")
		}), masquerading(podA), publishing(mapping(family, udp, podA)))
	}
}

// arriving is a packet from outside at the uplink.
func (j *journey) arriving() []byte {
	f := j.outside.rx("")
	f.srcMAC, f.dstMAC = j.up.router, j.up.mac
	return f.bytes(j.tb)
}

// The kernel forgets which device an IPv6 packet came by when it fragments it again. Such a fragment is the node's only if its address is.
func TestPrivilegedPolicyRefragmented(t *testing.T) {
	fx := newFixture(t, nil)
	for _, tt := range []struct {
		name   string
		src    netip.Addr
		mode   policy.Mode
		reason drops.Reason
	}{
		{"client", client6, policy.ModeOpen, reasonIngress},
		{"sibling", podB.addr6, policy.ModeOpen, reasonIngress},
		{"isolated sibling", podB.addr6, policy.ModeIsolated, reasonIsolated},
		{"isolated link-local", ip("fe80::b"), policy.ModeIsolated, reasonIsolated},
		{"node", gateway6, policy.ModeIsolated, 0},
	} {
		fx.each(t, tt.name, func(w *walk) {
			w.police(podA, 7, tt.mode, `{"ingressDefault":"deny"}`)
			f := conn{proto: udp, local: at(podA.addr6, podPort), remote: at(tt.src, clientPort)}.rx("")
			f.srcMAC, f.dstMAC, f.payload = podA.gwMAC, podA.mac, make([]byte, 200)
			for _, b := range fragments(f.bytes(t), 3) {
				w.atPod(podIngress, b, tt.reason)
			}
		})
	}
}

// What the pod answers to the node goes on when its rules change.
func TestPrivilegedPolicyHostChange(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, denyAll)
		j := w.toPod(family, proto)
		j.inside.remote = at(pick(family, gateway4, gateway6), j.inside.remote.Port())
		in, out := j.inside.rx("S"), j.inside.tx("SA")
		in.srcMAC, in.dstMAC, out.srcMAC, out.dstMAC = podA.gwMAC, podA.mac, podA.mac, podA.gwMAC
		w.atPod(podIngress, in.bytes(t), 0)
		w.atPod(podEgress, out.bytes(t), 0)
		w.police(podA, 8, policy.ModeIsolated, denyAll)
		out.flags = "PA"
		out.number(!j.inside.remoteAsks)
		w.atPod(podEgress, out.bytes(t), 0)
	})
}

// An isolated pod's frames do not reach a sibling by an address that no endpoint has either, nor by multicast. What was routed is for the
// sender's hook.
func TestPrivilegedPolicyIsolatedBridged(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.police(podB, 7, policy.ModeIsolated, "")
		w.police(podC, 7, policy.ModeIsolated, "")
		for _, to := range []netip.Addr{pick(family, ip("10.1.0.99"), ip("fd00:1::99")), pick(family, ip("224.0.0.251"), ip("ff02::fb"))} {
			p := w.talk(family, proto, podB, podA)
			p.remote = at(to, p.remote.Port())
			b := p.sent("S").bytes(w.tb)
			w.stepInput(podIngress, podA.name, input{data: b, came: podB.name}, wantDrop(reasonIsolated, podA))
			w.stepInput(podIngress, podA.name, input{data: b, came: upl0.name}, untouched(b))
			w.stepInput(podIngress, podA.name, input{data: b, came: podC.name}, untouched(b))
		}
	})
}
