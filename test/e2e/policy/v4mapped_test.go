// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// sendMapped sends an IPv6 datagram from the v4-mapped address of src, and reports whether l hears it.
func sendMapped(t *testing.T, from, to *e2etest.Pod, l net.PacketConn, src, dst netip.AddrPort, word string) bool {
	t.Helper()
	mac := func(s string) net.HardwareAddr {
		m, err := net.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	as16 := func(a netip.Addr) net.IP { b := a.As16(); return b[:] }
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: as16(src.Addr()), DstIP: as16(dst.Addr())}
	u := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	if err := u.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: mac(from.MAC()), DstMAC: mac(to.MAC()), EthernetType: layers.EthernetTypeIPv6}, ip, u, gopacket.Payload(word)); err != nil {
		t.Fatal(err)
	}
	sendFrame(t, from, buf.Bytes())
	_ = l.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	got := make([]byte, 2048)
	n, peer, err := l.ReadFrom(got)
	if err != nil {
		return false
	}
	t.Logf("%q arrived from %s", got[:n], peer)
	return true
}

// A pod with CAP_NET_RAW cannot pass a policy, ingressPolicy or anti-spoofing by an IPv6 packet with a v4-mapped source. The
// receiver's stack delivers it to a socket of both families as IPv4, and answers go out by IPv4.
func TestPrivilegedV4MappedPackets(t *testing.T) {
	t.Parallel()
	for name, firewall := range map[string]e2etest.Attributes{
		"rules":    {"rules": map[string]any{"ingressDefault": "deny"}},
		"isolated": {"ingressPolicy": "isolated"},
		"spoofing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			n := e2etest.Net0()
			n.Firewall = firewall
			rt := w.Runtime(n)
			bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
			l, err := other.ListenPacket("udp6", e2etest.At(other.IP6, 9000))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			to := netip.AddrPortFrom(other.IP6, 9000)
			for _, src := range []netip.Addr{bad.IP4, netip.MustParseAddr("10.1.0.200"), netip.MustParseAddr("127.0.0.1")} {
				if sendMapped(t, bad, other, l, netip.AddrPortFrom(src, 1234), to, "mapped") {
					t.Errorf("a datagram from ::ffff:%s arrived", src)
				}
			}
			if n := w.Drops("IPv6 packet with a v4-mapped address"); n != 3 {
				t.Errorf("%d drops are counted, want 3", n)
			}
		})
	}
}
