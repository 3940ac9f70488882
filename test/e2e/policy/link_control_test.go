// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

func hardware(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// sendND sends a message of neighbour discovery from a pod to every host of its link.
func sendND(t *testing.T, p *e2etest.Pod, kind uint8, src netip.Addr, message gopacket.SerializableLayer) {
	t.Helper()
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: src.AsSlice(), DstIP: net.IPv6linklocalallnodes}
	m := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	if err := m.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	eth := &layers.Ethernet{SrcMAC: hardware(t, p.MAC()), DstMAC: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, m, message); err != nil {
		t.Fatal(err)
	}
	sendFrame(t, p, buf.Bytes())
}

// claim sends an unsolicited neighbour advertisement, or for IPv4 an ARP answer, that says the pod has the address.
func claim(t *testing.T, p *e2etest.Pod, a netip.Addr) {
	t.Helper()
	own := hardware(t, p.MAC())
	if a.Is6() {
		sendND(t, p, layers.ICMPv6TypeNeighborAdvertisement, linkLocal(t, p), &layers.ICMPv6NeighborAdvertisement{
			Flags: 0x20, TargetAddress: a.AsSlice(), Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: own}},
		})
		return
	}
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true},
		&layers.Ethernet{SrcMAC: own, DstMAC: everybody, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{
			AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPReply,
			SourceHwAddress: own, SourceProtAddress: a.AsSlice(), DstHwAddress: everybody, DstProtAddress: a.AsSlice(),
		})
	if err != nil {
		t.Fatal(err)
	}
	sendFrame(t, p, buf.Bytes())
}

// known is the link address that the pod, or the node, has of a neighbour.
func known(t *testing.T, at interface{ Do(func() error) error }, dev string, a netip.Addr) string {
	t.Helper()
	fields := strings.Fields(e2etest.MustRun(t, at, fmt.Sprintf("ip neigh show to %s dev %s", a, dev)))
	for i, f := range fields {
		if f == "lladdr" && i+1 < len(fields) {
			return fields[i+1]
		}
	}
	return ""
}

// A pod takes no address of its bridge from others: neither the gateway's from its siblings, nor a sibling's from the node. What it says of
// its own is heard.
func TestPrivilegedFalseNeighbourClaims(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "isolated"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			n := e2etest.Net0()
			if mode != "" {
				n.Firewall = e2etest.Attributes{"ingressPolicy": mode}
			}
			rt := w.Runtime(n)
			bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
			// What a neighbour just said does not shield its entry for a second, as it does by default.
			for _, err := range []error{other.WriteSysctl("net/ipv4/neigh/eth0/locktime", "0"), w.Node.WriteSysctl("net/ipv4/neigh/cni0/locktime", "0")} {
				if err != nil {
					t.Fatal(err)
				}
			}
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				gateway := netip.MustParseAddr(fam.Gateway)
				for _, x := range []struct {
					at    interface{ Do(func() error) error }
					dev   string
					claim netip.Addr
					owner string
				}{{other, "eth0", gateway, macOf(t, w.Node, "cni0")}, {w.Node, "cni0", fam.Pod(other), other.MAC()}} {
					e2etest.MustRun(t, x.at, fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud stale", x.claim, x.owner, x.dev))
					before := w.Counters(t, bad).Drops
					claim(t, bad, x.claim)
					e2etest.Eventually(t, 5*time.Second, func() error {
						if w.Counters(t, bad).Drops == before {
							return errors.New("no drop is counted")
						}
						return nil
					})
					if got := known(t, x.at, x.dev, x.claim); got != x.owner {
						t.Errorf("%s is at %s, which is not %s", x.claim, got, x.owner)
					}
				}
				e2etest.MustRun(t, w.Node, fmt.Sprintf("ip neigh replace %s lladdr 02:00:00:00:be:ef dev cni0 nud stale", fam.Pod(bad)))
				e2etest.Eventually(t, 5*time.Second, func() error {
					claim(t, bad, fam.Pod(bad)) // the kernel ignores one in the same tick as the change above
					if got := known(t, w.Node, "cni0", fam.Pod(bad)); got != bad.MAC() {
						return errors.New("the pod's own address is at " + got)
					}
					return nil
				})
			})
		})
	}
}

// A pod does not become the router of its siblings.
func TestPrivilegedFalseNeighbourRouter(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	if err := other.WriteSysctl("net/ipv6/conf/eth0/accept_ra", "2"); err != nil {
		t.Fatal(err)
	}
	sendND(t, bad, layers.ICMPv6TypeRouterAdvertisement, linkLocal(t, bad), &layers.ICMPv6RouterAdvertisement{HopLimit: 64, RouterLifetime: 1800})
	e2etest.Eventually(t, 5*time.Second, func() error {
		if w.Drops("pod acts as a router on its link, or claims an address that is not its own") == 0 {
			return errors.New("no drop is counted")
		}
		return nil
	})
	if out := e2etest.MustRun(t, other, "ip -6 route show default"); strings.Contains(out, "proto ra") {
		t.Errorf("another pod's router:\n%s", out)
	}
}

// Under rules that deny all, no packet of a pod reaches the client because it looks like neighbour discovery, or like an ICMP error about
// a connection that there is not.
func TestPrivilegedPolicyStrayICMP(t *testing.T) {
	t.Parallel()
	for name, firewall := range map[string]e2etest.Attributes{"open": nil, "denied": {"rules": e2etest.Attributes{"egressDefault": "deny"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			n := e2etest.Net0()
			n.NoMasq, n.Firewall = true, firewall
			bad, c := w.AddPod(w.Runtime(n), "bad"), w.Client()
			from, gateway := hardware(t, bad.MAC()), hardware(t, macOf(t, w.Node, "cni0"))
			src, dst := bad.IP6.AsSlice(), e2etest.Families()[1].Client(c).AsSlice()
			about := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: dst, DstIP: src, Length: 8}
			for kind, message := range map[uint8][]gopacket.SerializableLayer{
				layers.ICMPv6TypeNeighborSolicitation:   {&layers.ICMPv6NeighborSolicitation{TargetAddress: dst}},
				layers.ICMPv6TypeDestinationUnreachable: {gopacket.Payload(make([]byte, 4)), about, gopacket.Payload([]byte{0, 9, 0, 9, 0, 8, 0, 0})},
			} {
				l, err := c.ListenPacket("ip6:ipv6-icmp", e2etest.Families()[1].Client(c).String())
				if err != nil {
					t.Fatal(err)
				}
				ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: src, DstIP: dst}
				m := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
				if err := m.SetNetworkLayerForChecksum(ip); err != nil {
					t.Fatal(err)
				}
				buf := gopacket.NewSerializeBuffer()
				frame := append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: from, DstMAC: gateway, EthernetType: layers.EthernetTypeIPv6}, ip, m}, message...)
				// The lengths inside the error stay as they are.
				if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, frame...); err != nil {
					t.Fatal(err)
				}
				b := buf.Bytes()
				binary.BigEndian.PutUint16(b[14+4:], uint16(len(b)-14-40))
				sendFrame(t, bad, b)
				if got := hearsICMP(t, l, kind, bad.IP6); got != (firewall == nil) {
					t.Errorf("type %d: heard %t", kind, got)
				}
				l.Close()
			}
		})
	}
}

// hearsICMP tells whether an ICMPv6 message of the type comes from an address.
func hearsICMP(t *testing.T, l net.PacketConn, kind uint8, from netip.Addr) bool {
	t.Helper()
	if err := l.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 2048); ; {
		n, peer, err := l.ReadFrom(buf)
		if err != nil {
			return false
		}
		if a, ok := netip.AddrFromSlice(peer.(*net.IPAddr).IP); ok && n > 0 && buf[0] == kind && a == from {
			return true
		}
	}
}
