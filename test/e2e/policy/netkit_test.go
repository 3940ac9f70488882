// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// netkitNet is the first network on netkit devices.
func netkitNet() e2etest.Network {
	n := e2etest.Net0()
	n.Extra = e2etest.Attributes{"deviceKind": "netkit"}
	return n
}

// A netkit device hands the protocol that a socket of the pod names to the node, whatever the header says, and tags that the node takes
// off. Neither lets a pod send with another's address.
func TestPrivilegedNetkitSpoof(t *testing.T) {
	t.Parallel()
	require.Netkit(t)
	w := e2etest.NewWorld(t)
	rt := w.Runtime(netkitNet())
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	c := w.Client()
	fam := e2etest.Families()[0]
	for _, x := range []struct {
		name string
		at   e2etest.Place
		addr netip.Addr
		mac  string
	}{
		{"sibling", other, other.IP4, other.MAC()},
		{"node", w.Node, fam.Node(c), macOf(t, w.Node, "cni0")},
		{"client", c, fam.Client(c), macOf(t, w.Node, "cni0")},
	} {
		to := netip.AddrPortFrom(x.addr, 9000)
		l := listens(t, x.at, to)
		own, stolen := netip.AddrPortFrom(bad.IP4, 1234), netip.MustParseAddrPort("10.1.0.200:1234")
		if !named(t, bad, l, bad.MAC(), x.mac, own, to, uint16(layers.EthernetTypeIPv4), unix.ETH_P_IP, "plain") {
			t.Errorf("%s: a datagram with the pod's own address did not arrive: the test proves nothing", x.name)
		}
		for _, frame := range []struct {
			name          string
			header, named uint16
		}{
			{"as it is", unix.ETH_P_IP, unix.ETH_P_IP},
			{"header of another protocol", 0x88b5, unix.ETH_P_IP},
			{"header of ARP", unix.ETH_P_ARP, unix.ETH_P_IP},
			{"protocol of another", unix.ETH_P_IP, 0x88b5},
			{"protocol of a tag", unix.ETH_P_IP, unix.ETH_P_8021Q},
		} {
			if named(t, bad, l, bad.MAC(), x.mac, stolen, to, frame.header, frame.named, "stolen") {
				t.Errorf("%s, %s: a datagram with a false source arrived", x.name, frame.name)
			}
		}
		for tags := 1; tags < 3; tags++ {
			if withTags(t, tags, bad, l, bad.MAC(), x.mac, stolen, to, "stolen") {
				t.Errorf("%s: a datagram with a false source and %d tags arrived", x.name, tags)
			}
		}
	}
	if c := w.Counters(t, bad); c.Drops == 0 && w.Drops("opaque") == 0 {
		t.Error("no drop is counted")
	}
}

// named sends a datagram in a frame whose header says one protocol, by a socket that names another. It reports whether l hears it.
func named(
	t *testing.T, ns interface{ Do(func() error) error }, l net.PacketConn, srcMAC, dstMAC string, src, dst netip.AddrPort, header, protocol uint16, word string,
) bool {
	t.Helper()
	mac := func(s string) net.HardwareAddr {
		m, err := net.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	u := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	if err := u.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: mac(srcMAC), DstMAC: mac(dstMAC), EthernetType: layers.EthernetType(header)}, ip, u, gopacket.Payload(word))
	if err != nil {
		t.Fatal(err)
	}
	sendFrameAs(t, ns, buf.Bytes(), protocol)
	_ = l.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	got := make([]byte, 2048)
	for {
		n, _, err := l.ReadFrom(got)
		if err != nil {
			return false
		}
		if string(got[:n]) == word {
			return true
		}
	}
}

// Rules of the firewall plugin, and isolation, hold for pods on netkit devices, on new connections and on those of the fast path.
func TestPrivilegedNetkitIsolated(t *testing.T) {
	t.Parallel()
	require.Netkit(t)
	w := e2etest.NewWorld(t)
	n := netkitNet()
	n.Firewall = e2etest.Attributes{"ingressPolicy": "isolated"}
	rt := w.Runtime(n)
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	to := netip.AddrPortFrom(other.IP4, 9000)
	l := listens(t, other, to)
	if sent(t, bad, "udp4", e2etest.At(bad.IP4, 0), l, to, "plain") {
		t.Error("isolated pods talk")
	}
	if named(t, bad, l, bad.MAC(), other.MAC(), netip.AddrPortFrom(bad.IP4, 1234), to, 0x88b5, unix.ETH_P_IP, "hidden") {
		t.Error("isolated pods talk by a hidden protocol")
	}
	if withTags(t, 1, bad, l, bad.MAC(), other.MAC(), netip.AddrPortFrom(bad.IP4, 1234), to, "tagged") {
		t.Error("isolated pods talk by a tag")
	}
	e2etest.Serve(t, other, "other", ":80")
	e2etest.AssertDenied(t, bad, "tcp4", e2etest.At(other.IP4, 80))
}
