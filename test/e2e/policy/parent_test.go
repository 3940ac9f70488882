// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/pktgen"
)

// Rules hold for what a pod without a host veth sends past the programs on its own device: by a packet socket that bypasses them, which
// needs CAP_NET_RAW, and after root in the pod has removed them. So they do for what macvlan pods send to each other.
func TestPrivilegedParentRules(t *testing.T) {
	t.Parallel()
	e2etest.EachPodnsKind(t, func(t *testing.T, k e2etest.PodnsKind) {
		if k.Plugin == "host-device" { // it has no parent
			return
		}
		w := k.NewWorld(t)
		n := k.Network("firewall")
		n.Firewall = e2etest.Attributes{"backend": "ebpf", "rules": e2etest.Attributes{
			"egress": []e2etest.Attributes{{"action": "deny", "ports": []int{9001}}},
		}}
		rt := w.Runtime(n)
		pod := w.AddPod(rt, "pod")
		e2etest.AssertChecked(t, pod)
		e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
			client := "eth0"
			if k.Plugin == "vlan" {
				client = "tagged"
			}
			send := senderOf(t, w, client, fam, pod)
			wire := hears(t, w.Client(), []string{"own-9000", "own-9001", "mac-9001", "addr-9001", "tag-9001"}, func() { send.all(k.ClientAddr(w, fam), send.client) })
			lost := k.Name == "ipvlan l3" && !bpfsys.KernelAtLeast(6, 12) // on 5.10 and 6.1 the driver loses frames of packet sockets
			if !wire["own-9000"] && !lost {
				t.Error("what the rules allow does not arrive")
			}
			if wire["own-9001"] {
				t.Error("a packet socket bypasses the rules")
			}
			if wire["tag-9001"] && (bpfsys.KernelAtLeast(6, 15) || k.Plugin != "ipvlan") { // before, an ipvlan pod is known by its address alone
				t.Error("a priority tag bypasses the rules")
			}
			unforgeable := bpfsys.KernelAtLeast(6, 15) || k.Plugin == "vlan" // before, the packet alone says whose it is
			if unforgeable && (wire["mac-9001"] || wire["addr-9001"]) {
				t.Errorf("a forged source bypasses the rules: %v", wire)
			}
		})
		if k.Plugin == "macvlan" { // the drivers of the others hand packets to siblings past the parent
			assertSiblingsRules(t, w, rt, pod)
		}
		e2etest.MustRun(t, pod, "tc qdisc del dev eth0 clsact")
		e2etest.Serve(t, w.Client(), "client", ":9000")
		e2etest.Serve(t, w.Client(), "client", ":9001")
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, pod, proto, e2etest.At(k.ClientAddr(w, fam), 9000)); got.Server != "client" {
				t.Errorf("%s answers", got.Server)
			}
			e2etest.AssertDenied(t, pod, proto, e2etest.At(k.ClientAddr(w, fam), 9001))
		})
		pod.MustDel()
		if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" status"); strings.Contains(out, "sl_parent ") {
			t.Errorf("left by DEL:\n%s", out)
		}
	})
}

func assertSiblingsRules(t *testing.T, w *e2etest.World, rt *netlab.Runtime, pod *e2etest.Pod) {
	t.Helper()
	other := w.AddPod(rt, "other")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		got := hears(t, other, []string{"own-9000", "own-9001"}, func() {
			senderOf(t, w, "eth0", fam, pod).all(fam.Pod(other), macAt(t, other, "eth0"))
		})
		if !got["own-9000"] || got["own-9001"] {
			t.Errorf("to a sibling: %v, want own-9000 only", got)
		}
	})
	other.MustDel()
}

// rawSender sends frames of a pod past the programs on its device.
type rawSender struct {
	t       *testing.T
	pod     *e2etest.Pod
	mac     net.HardwareAddr
	client  net.HardwareAddr
	addr    netip.Addr
	another netip.Addr // in the pod's subnet
}

func senderOf(t *testing.T, w *e2etest.World, client string, fam e2etest.Family, pod *e2etest.Pod) rawSender {
	t.Helper()
	addr := fam.Pod(pod)
	another := addr.AsSlice()
	another[len(another)-1] ^= 0x40
	forged, _ := netip.AddrFromSlice(another)
	return rawSender{t: t, pod: pod, mac: macAt(t, pod, "eth0"), client: macAt(t, w.Client(), client), addr: addr, another: forged}
}

// all sends what the rules allow, what they deny, and the latter with a MAC and with an address that are not the pod's, and behind a tag
// of VLAN 0.
func (s rawSender) all(to netip.Addr, mac net.HardwareAddr) {
	s.t.Helper()
	forged := net.HardwareAddr{2, 0, 0, 0, 0xbe, 0xef}
	for _, f := range []struct {
		word string
		mac  net.HardwareAddr
		addr netip.Addr
		port layers.UDPPort
	}{{"own-9000", s.mac, s.addr, 9000}, {"own-9001", s.mac, s.addr, 9001}, {"mac-9001", forged, s.addr, 9001}, {"addr-9001", s.mac, s.another, 9001}, {"tag-9001", s.mac, s.addr, 9001}} {
		s.send(f.word, mac, f.mac, f.addr, to, f.port)
	}
}

func (s rawSender) send(word string, toMAC, fromMAC net.HardwareAddr, from, to netip.Addr, port layers.UDPPort) {
	s.t.Helper()
	eth := &layers.Ethernet{SrcMAC: fromMAC, DstMAC: toMAC, EthernetType: layers.EthernetTypeIPv4}
	u := &layers.UDP{SrcPort: 1000, DstPort: port}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	if from.Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	}
	buf := gopacket.NewSerializeBuffer()
	err := u.SetNetworkLayerForChecksum(ip)
	if err == nil {
		err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, u, gopacket.Payload(word))
	}
	if err == nil {
		err = s.pod.Do(func() error {
			dev, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			sock, err := pktgen.NewSocket(dev.Index)
			if err != nil {
				return err
			}
			defer sock.Close()
			frame := buf.Bytes()
			if strings.HasPrefix(word, "tag-") {
				frame = slices.Concat(frame[:12], []byte{0x81, 0x00, 5 << 5, 0}, frame[12:])
			}
			return sock.Send(frame, 1)
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func macAt(t *testing.T, ns interface{ Do(func() error) error }, device string) (mac net.HardwareAddr) {
	t.Helper()
	if err := ns.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err == nil {
			mac = dev.HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mac
}
