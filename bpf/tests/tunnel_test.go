// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

const reasonTunnel = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_TUNNEL)

// tunnelPort is where the VXLAN device of the tests waits, and nestedPort is of no device.
const tunnelPort, nestedPort = 8472, 8473

// tunnelling makes an uplink a VXLAN device.
func tunnelling(u *uplink) option {
	return func(w *walk) {
		if err := endpoint.NewTunnelPorts(w.views["sl_tunnel_ports"]).Replace(map[uint32]uint16{uint32(w.index(u.name)): tunnelPort}); err != nil {
			w.tb.Fatal(err)
		}
	}
}

// A datagram to the port of a VXLAN device reaches no node, by whatever shape of packet and from whatever address: at the pod what is for this
// node is refused, at the uplink what is for others, and by the VXLAN device what another node's pod sends. Everything else goes on.
func TestPrivilegedTunnelPort(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_anti_spoof": 0})
	everyHost := map[int][]netip.Addr{4: {ip("255.255.255.255"), ip("224.0.0.1")}, 6: {ip("ff02::1"), ip("fe80::1")}}
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			gateway := pick(family, gateway4, gateway6)
			try := func(h hook, dev string, f frame, drop bool) {
				t.Helper()
				f.payload = make([]byte, 64)
				for name, raw := range datagramShapes(f.bytes(t)) {
					if name == unreadable && !drop {
						continue // no program sees its port
					}
					r, err := w.run(h, dev, input{data: raw, badSums: true})
					if err != nil || (r.verdict == shot) != drop {
						t.Errorf("%s: %s from %s to %s: verdict %d, want a drop: %v (%v)", h, name, f.src, f.dst, r.verdict, drop, err)
					}
				}
			}
			sent := func(src, dst netip.Addr, port uint16) frame {
				return frame{srcMAC: podA.mac, dstMAC: podA.gwMAC, src: at(src, keptPort), dst: at(dst, port), proto: udp, ttl: 64}
			}
			own := podA.addr(family)
			for _, dst := range append([]netip.Addr{gateway, upl0.addr(family), upl1.addr(family)}, everyHost[family]...) {
				for _, src := range []netip.Addr{own, podC.addr(family)} { // its own, and one that only a node without antiSpoof lets pass
					try(podEgress, podA.name, sent(src, dst, tunnelPort), true)
					try(podEgress, podA.name, sent(src, dst, nestedPort), false)
				}
			}
			for _, dst := range []netip.Addr{podB.addr(family), client(family), pick(family, ip("10.1.0.77"), ip("fd00:1::77"))} {
				try(podEgress, podA.name, sent(own, dst, tunnelPort), false)
			}
			for _, u := range []*uplink{upl0, upl1} {
				f := sent(own, client(family), tunnelPort).routed(u.mac, u.router)
				try(uplEgress, u.name, f, u == upl0)
				f.dst = at(client(family), nestedPort)
				try(uplEgress, u.name, f, false)
				for _, dst := range []netip.Addr{upl0.addr(family), gateway, own, client(family)} {
					f := frame{srcMAC: u.router, dstMAC: u.mac, src: at(client(family), keptPort), dst: at(dst, tunnelPort), proto: udp, ttl: 64}
					try(uplIngress, u.name, f, u == upl1 && (dst == gateway || dst == upl0.addr(family)))
				}
			}
		}, tunnelling(upl1))
	}
}

// unreadable is a datagram whose headers the full parser does not follow to their end.
const unreadable = "behind many headers"

// datagramShapes are ways to send one datagram: what the fast parser reads, what the slow one reads, and what neither does.
func datagramShapes(raw []byte) map[string][]byte {
	all := map[string][]byte{"plain": raw, "first fragment": fragments(raw, 2)[0]}
	if isIPv4(raw) {
		return all
	}
	header := extension(60, 0, 0, 1, 4, 0, 0, 0, 0)
	many := raw
	for range 9 {
		many = header(many)
	}
	all["behind a header"], all[unreadable] = header(raw), many
	return all
}

// Without a VXLAN device no port is kept from pods.
func TestPrivilegedNoTunnel(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			f := frame{srcMAC: podA.mac, dstMAC: podA.gwMAC, src: at(podA.addr(family), keptPort), dst: at(upl0.addr(family), tunnelPort), proto: udp, ttl: 64}
			w.step(podEgress, podA.name, f.bytes(t), passes(f.bytes(t)))
		})
	}
}
