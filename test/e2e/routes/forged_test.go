// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const vxlanPort = 8472

// A pod does not speak as a pod of another node: what it sends to the tunnel's port of this node or of another one, by any of their
// addresses, goes nowhere. The nodes themselves do, and pods have the port for tunnels of their own.
func TestPrivilegedVXLANForgedByPod(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	c := newCluster(t, "ptp", "bridge", "ptp")
	c.use(routes.ModeVXLAN)
	all := makePods(t, c)
	for _, m := range c.members {
		e2etest.MustRun(t, m.Node, e2etest.Programs.Path("sluice")+" resync") // as the agent does
	}
	sender := all[0]
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, victim := range all[:2] {
			heard := hear(t, victim.pod, "udp"+fam.Suffix)
			addrs := []netip.Addr{pickFamily(fam, victim.facts.InternalIPs), gatewayOf(victim, fam)}
			if victim.member != sender.member {
				for _, cidr := range victim.facts.PodCIDRs { // the VXLAN device's own address
					if cidr.Addr().Is4() == (fam.Suffix == "4") {
						addrs = append(addrs, cidr.Addr())
					}
				}
			}
			for _, addr := range addrs {
				f := forged(t, victim, fam, "forged "+addr.String())
				for _, from := range []e2etest.Place{sender.pod, sender.big} {
					sendTo(t, from, "udp"+fam.Suffix, addr, f)
				}
				if word := heard(e2etest.NoAnswerTimeout); word != "" {
					t.Errorf("%s of %s got %q, sent by a pod to %s", fam.Name, victim.facts.Name, word, addr)
				}
			}
			// The frame is one that the tunnel takes.
			other := all[2]
			f := forged(t, victim, fam, "a node's")
			sendTo(t, other.Node, "udp"+fam.Suffix, pickFamily(fam, victim.facts.InternalIPs), f)
			if word := heard(e2etest.AnswerTimeout); word != "a node's" {
				t.Errorf("%s of %s got %q of another node", fam.Name, victim.facts.Name, word)
			}
		}
		for _, to := range all[:2] {
			pc, err := to.big.ListenPacket("udp"+fam.Suffix, e2etest.At(fam.Pod(to.big), vxlanPort))
			if err != nil {
				t.Fatal(err)
			}
			defer pc.Close()
			go e2etest.ServeUDP(pc, "nested")
			if got := e2etest.Ask(t, sender.pod, "udp"+fam.Suffix, e2etest.At(fam.Pod(to.big), vxlanPort)); got.Server != "nested" {
				t.Errorf("a tunnel between pods to %s: answered by %q", to.facts.Name, got.Server)
			}
		}
	})
}

func pickFamily(fam e2etest.Family, addrs []netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == (fam.Suffix == "4") {
			return a
		}
	}
	return netip.Addr{}
}

// hear returns what asks for the next datagram that came to a pod's port 90; "" for none.
func hear(t *testing.T, p *e2etest.Pod, network string) func(limit time.Duration) string {
	t.Helper()
	pc, err := p.ListenPacket(network, ":90")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	return func(limit time.Duration) string {
		b := make([]byte, 100)
		_ = pc.SetReadDeadline(time.Now().Add(limit))
		n, _, err := pc.ReadFrom(b)
		if err != nil {
			return ""
		}
		return string(b[:n])
	}
}

func sendTo(t *testing.T, from e2etest.Place, network string, to netip.Addr, b []byte) {
	t.Helper()
	conn, err := from.DialContext(t.Context(), network, e2etest.At(to, vxlanPort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// forged is what the VXLAN device of the third node would put into UDP for a datagram of one of its pods.
func forged(t *testing.T, victim pods, fam e2etest.Family, word string) []byte {
	t.Helper()
	v4 := fam.Suffix == "4"
	device := "flannel.1"
	src := netip.MustParseAddr("10.1.2.77")
	if !v4 {
		device, src = "flannel-v6.1", netip.MustParseAddr("fd00:1:0:2::77")
	}
	udp := &layers.UDP{SrcPort: 1234, DstPort: 90}
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: macOn(t, victim, device), EthernetType: layers.EthernetTypeIPv6}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: fam.Pod(victim.pod).AsSlice()}
	if v4 {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: fam.Pod(victim.pod).AsSlice()}
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(b, opts, &layers.VXLAN{ValidIDFlag: true, VNI: 1}, eth, ip, udp, gopacket.Payload(word)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func macOn(t *testing.T, m pods, device string) net.HardwareAddr {
	t.Helper()
	var links []struct{ Address string }
	if err := json.NewDecoder(strings.NewReader(e2etest.MustRun(t, m.Node, "ip -j link show "+device))).Decode(&links); err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(links[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}
