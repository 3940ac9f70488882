// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const reasonFalseND = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_FALSE_ND)

// The messages of neighbour discovery (RFC 4861).
const (
	routerSolicit    = 133
	routerAdvert     = 134
	neighbourSolicit = 135
	neighbourAdvert  = 136
	ndRedirect       = 137
)

var gateway4, gateway6 = ip("10.1.0.1"), ip("fd00:1::1")

// discover is a message of neighbour discovery about target that podA sends.
func discover(tb testing.TB, kind byte, src, dst, target netip.Addr, hopLimit uint8) []byte {
	tb.Helper()
	f := frame{
		srcMAC: podA.mac, dstMAC: podA.gwMAC, src: at(src, 0), dst: at(dst, 0), proto: echo, ttl: hopLimit,
		payload: append(target.AsSlice(), 2, 1, 2, 0, 0, 0, 0xa, 2), // and whose link address it is
	}
	b := f.bytes(tb)
	l4 := read(b).l4
	copy(b[l4:], []byte{kind, 0, 0, 0, 0x60, 0, 0, 0})
	fixL4Sum(b)
	return b
}

// arp is an ARP packet of podA that names sender as its own address.
func arp(op byte, sender, target netip.Addr) []byte {
	b := append(append(net.HardwareAddr{}, broadcastMAC...), podA.mac...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, op)
	b = append(append(b, podA.mac...), sender.AsSlice()...)
	return append(append(b, 0, 0, 0, 0, 0, 0), target.AsSlice()...)
}

// link is something that a pod sends on its link, and whether it may.
type link struct {
	name   string
	data   []byte
	drop   drops.Reason // 0: it passes
	router bool         // it is a router's
}

// links are what a pod may send on its link, and what takes the addresses of others.
func links(tb testing.TB) (all []link) {
	tb.Helper()
	own, everybody := ip("fe80::a"), ip("ff02::1")
	add := func(name string, data []byte, drop drops.Reason, router bool) {
		all = append(all, link{name, data, drop, router})
	}
	for _, src := range []netip.Addr{own, podA.addr6, unspecified(6)} {
		nd := func(kind byte, target netip.Addr) []byte { return discover(tb, kind, src, everybody, target, 255) }
		add(fmt.Sprint("router advertisement from ", src), nd(routerAdvert, own), reasonFalseND, true)
		add(fmt.Sprint("redirect from ", src), nd(ndRedirect, gateway6), reasonFalseND, true)
		add(fmt.Sprint("gateway's advertisement from ", src), nd(neighbourAdvert, gateway6), reasonFalseND, false)
		add(fmt.Sprint("sibling's advertisement from ", src), nd(neighbourAdvert, podB.addr6), reasonFalseND, false)
		add(fmt.Sprint("advertisement from ", src), nd(neighbourAdvert, podA.addr6), 0, false)
		add(fmt.Sprint("solicitation from ", src), nd(neighbourSolicit, gateway6), 0, false)
		add(fmt.Sprint("router solicitation from ", src), nd(routerSolicit, own), 0, false)
		options := extension(60, 0, 0, 1, 4, 0, 0, 0, 0)
		hidden := options(nd(neighbourAdvert, gateway6))
		add(fmt.Sprint("behind a header from ", src), hidden, reasonFalseND, false)
		for range 8 {
			hidden = options(hidden)
		}
		add(fmt.Sprint("behind nine headers from ", src), hidden, reasonOpaque, true)
	}
	add("link-local advertisement", discover(tb, neighbourAdvert, own, everybody, own, 255), 0, false)
	add("forwarded advertisement", discover(tb, neighbourAdvert, own, everybody, gateway6, 64), 0, false)
	ping := conn{proto: echo, local: at(podA.addr4, 7), remote: at(client4, 0)}.tx("")
	ping.srcMAC, ping.dstMAC = podA.mac, podA.gwMAC
	for _, kind := range []byte{5, 9} {
		add(fmt.Sprint("ICMP type ", kind), icmp(kind, 0)(ping.bytes(tb)), reasonFalseND, true)
	}
	add("ICMP timestamp", icmp(13, 0)(ping.bytes(tb)), 0, false)
	for _, op := range []byte{1, 2} {
		add(fmt.Sprint("ARP ", op), arp(op, podA.addr4, gateway4), 0, false)
		add(fmt.Sprint("ARP probe ", op), arp(op, unspecified(4), podA.addr4), 0, false)
		for _, a := range []netip.Addr{gateway4, podB.addr4, client4, ip("169.254.1.1")} {
			add(fmt.Sprint("ARP ", op, " as ", a), arp(op, a, podA.addr4), reasonFalseND, false)
		}
	}
	return all
}

// sendLink gives podA's hook a packet that is refused for the reason, or passes for 0.
func (w *walk) sendLink(l link, reason drops.Reason) {
	w.tb.Helper()
	own := binary.BigEndian.Uint16(l.data[12:]) != 0x0806 && w.sentByOwnAddress(l.data)
	want := untouched(l.data)
	if reason != 0 {
		want = wantDrop(reason, podA)
	}
	want.uncounted = !own
	w.stepInput(podEgress, podA.name, input{data: l.data, badSums: true}, want)
}

func (w *walk) sentByOwnAddress(b []byte) bool {
	src := pick(familyOf(b), b[ethLen+12:ethLen+16], b[ethLen+8:ethLen+24])
	a, _ := netip.AddrFromSlice(src)
	return a == podA.addr(familyOf(b))
}

// A pod is no router, and claims no address of others on its link: not by neighbour discovery, not by ARP, with a policy and without.
func TestPrivilegedFalseNeighbour(t *testing.T) {
	fx := newFixture(t, nil)
	for _, l := range links(t) {
		fx.each(t, l.name, func(w *walk) {
			w.sendLink(l, l.drop)
			w.police(podA, 7, policy.ModeIsolated, "")
			w.sendLink(l, l.drop)
			w.police(podA, 8, policy.ModeOpen, `{"egress":[{"action":"allow"}],"egressDefault":"deny"}`)
			w.sendLink(l, l.drop)
		})
	}
}

// A pod of two devices of one pod speaks for both.
func TestPrivilegedFalseNeighbourOwnOtherDevice(t *testing.T) {
	fx := newFixture(t, nil)
	fx.each(t, "both", func(w *walk) {
		w.samePod(podA, podB)
		w.sendLink(link{data: arp(2, podB.addr4, gateway4)}, 0)
		w.sendLink(link{data: discover(t, neighbourAdvert, ip("fe80::a"), ip("ff02::1"), podB.addr6, 255)}, 0)
		w.sendLink(link{data: arp(2, podC.addr4, gateway4)}, reasonFalseND)
	})
}

// Where pods may send from other addresses they may claim them too. Only those under a policy are still no routers.
func TestPrivilegedFalseNeighbourAntiSpoofOff(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_anti_spoof": 0})
	for _, l := range links(t) {
		fx.each(t, l.name, func(w *walk) {
			w.sendLink(l, 0)
			w.police(podA, 7, policy.ModeIsolated, "")
			if l.router {
				w.sendLink(l, l.drop)
			} else {
				w.sendLink(l, 0)
			}
		})
	}
}

// Nor is a pod under rules a router that has its programs in its own namespace. Those know no addresses of the pod.
func TestPrivilegedFalseNeighbourPodNS(t *testing.T) {
	fx := newFixture(t, nil)
	const number = 5
	fx.each(t, "inside", func(w *walk) {
		pol := w.putPolicy(7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
		w.put("sl_dev_policy", podns.Key(number), policymap.NewPoliced(podA.owner, 0, 7, pol))
		w.put("sl_ns_devices", uint32(number), &bpfgen.TypesSlPodnsDevice{Owner: podA.owner})
		defer w.remove("sl_ns_devices", uint32(number))
		w.number = number
		for _, l := range links(t) {
			expect := untouched(l.data)
			if l.router {
				expect = want{verdict: shot, reason: l.drop, uncounted: true}
			}
			w.stepInput(ownEgress, podB.name, input{data: l.data, badSums: true}, expect)
		}
	})
}
