// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// tagged sends a datagram in a frame with an 802.1Q tag of VLAN 0 (priority only, IEEE 802.1Q 6.9), which every
// receiver takes for an untagged one (__netif_receive_skb_core). Reports whether l hears it.
func tagged(t *testing.T, ns interface{ Do(func() error) error }, l net.PacketConn, srcMAC, dstMAC string, src, dst netip.AddrPort, word string) bool {
	t.Helper()
	return withTags(t, 1, ns, l, srcMAC, dstMAC, src, dst, word)
}

// withTags is tagged with any number of tags of VLAN 0, one behind the other. The stack takes all of them off.
func withTags(t *testing.T, tags int, ns interface{ Do(func() error) error }, l net.PacketConn, srcMAC, dstMAC string, src, dst netip.AddrPort, word string) bool {
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
	frame := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac(srcMAC), DstMAC: mac(dstMAC), EthernetType: layers.EthernetTypeDot1Q}}
	for i := range tags {
		behind := layers.EthernetTypeDot1Q
		if i == tags-1 {
			behind = layers.EthernetTypeIPv4
		}
		frame = append(frame, &layers.Dot1Q{Priority: 5, VLANIdentifier: 0, Type: behind})
	}
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(frame, ip, u, gopacket.Payload(word))...)
	if err != nil {
		t.Fatal(err)
	}
	sendFrame(t, ns, buf.Bytes())
	_ = l.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	got := make([]byte, 2048)
	for {
		n, from, err := l.ReadFrom(got)
		if err != nil {
			return false
		}
		if string(got[:n]) == word {
			t.Logf("%q arrived from %s", word, from)
			return true
		}
	}
}

// sendFrame sends a whole frame from eth0 of ns, as a process with CAP_NET_RAW can. A drop may be the answer: a netkit device tells
// its sender of it (net_xmit_errno).
func sendFrame(t *testing.T, ns interface{ Do(func() error) error }, frame []byte) {
	t.Helper()
	sendFrameAs(t, ns, frame, 0)
}

// sendFrameAs is sendFrame by a socket that names a protocol, in host byte order; 0: what the header says.
func sendFrameAs(t *testing.T, ns interface{ Do(func() error) error }, frame []byte, protocol uint16) {
	t.Helper()
	if err := ns.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6, Protocol: protocol<<8 | protocol>>8})
	}); err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatal(err)
	}
}

func macOf(t *testing.T, ns interface{ Do(func() error) error }, dev string) string {
	t.Helper()
	var mac string
	if err := ns.Do(func() error {
		i, err := net.InterfaceByName(dev) // not by /sys, which may be another namespace's
		if err == nil {
			mac = i.HardwareAddr.String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mac
}

func listens(t *testing.T, at e2etest.Place, addr netip.AddrPort) net.PacketConn {
	l, err := at.ListenPacket("udp4", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// What a tag of VLAN 0 must not do: let a pod send with another's address, talk to an isolated sibling, or miss a hostPort.
func TestPrivilegedPriorityTagSpoof(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	fam := e2etest.Families()[0]
	stolen := netip.MustParseAddrPort("10.1.0.200:1234")
	for _, x := range []struct {
		name string
		at   e2etest.Place
		addr netip.Addr
		mac  string
	}{
		{"sibling", other, other.IP4, other.MAC()},
		{"node", w.Node, fam.Node(w.Client()), macOf(t, w.Node, "cni0")},
		{"client", w.Client(), fam.Client(w.Client()), macOf(t, w.Node, "cni0")},
	} {
		to := netip.AddrPortFrom(x.addr, 9000)
		if tagged(t, bad, listens(t, x.at, to), bad.MAC(), x.mac, stolen, to, "stolen") {
			t.Errorf("%s: a datagram with a false source arrived", x.name)
		}
	}
}

func TestPrivilegedPriorityTagIsolated(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Firewall = e2etest.Attributes{"ingressPolicy": "isolated"}
	rt := w.Runtime(n)
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	to := netip.AddrPortFrom(other.IP4, 9000)
	l := listens(t, other, to)
	if sent(t, bad, "udp4", e2etest.At(bad.IP4, 0), l, to, "plain") {
		t.Fatal("not isolated at all")
	}
	if tagged(t, bad, l, bad.MAC(), other.MAC(), netip.AddrPortFrom(bad.IP4, 1234), to, "tagged") {
		t.Error("isolated pods talk")
	}
}

func TestPrivilegedPriorityTagHostPort(t *testing.T) {
	for _, backend := range []string{"ebpf", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			n := e2etest.Net0()
			n.Portmap = e2etest.Attributes{"backend": backend}
			web := w.AddPod(w.Runtime(n), "web", e2etest.UDP(8080, 80))
			l := listens(t, web, netip.AddrPortFrom(web.IP4, 80))
			c := w.Client()
			node, client := e2etest.Families()[0].Node(c), e2etest.Families()[0].Client(c)
			if !tagged(t, c, l, macOf(t, c, "eth0"), macOf(t, w.Node, "eth0"), netip.AddrPortFrom(client, 1234), netip.AddrPortFrom(node, 8080), "tagged") {
				t.Error("a frame with a tag of VLAN 0 does not reach the hostPort")
			}
		})
	}
}

// A frame from the wire with any number of tags of VLAN 0 does not pass the guard of 127.0.0.0/8, nor does it go round a
// hostPort to a process of the node. The stack takes off all tags, so without the programs it would.
func TestPrivilegedPriorityTagsAtTheUplink(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.UDP(8080, 80))
	for _, dev := range []string{"all", "eth0"} {
		if err := w.Node.WriteSysctl("net/ipv4/conf/"+dev+"/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
	}
	c := w.Client()
	node, client := e2etest.Families()[0].Node(c), e2etest.Families()[0].Client(c)
	from, to := macOf(t, c, "eth0"), macOf(t, w.Node, "eth0")
	local := netip.MustParseAddrPort("127.0.0.1:9000")
	owned := netip.AddrPortFrom(node, 8080)
	atLocal, atOwned := listens(t, w.Node, local), listens(t, w.Node, owned)
	for tags := range 4 {
		if tags == 0 {
			continue
		}
		if withTags(t, tags, c, atLocal, from, to, netip.AddrPortFrom(client, 1234), local, "guarded") {
			t.Errorf("%d tags: a frame from the wire reaches 127.0.0.1", tags)
		}
		if withTags(t, tags, c, atOwned, from, to, netip.AddrPortFrom(client, 1234), owned, "owned") {
			t.Errorf("%d tags: a frame for the hostPort reaches a process of the node", tags)
		}
	}
}
