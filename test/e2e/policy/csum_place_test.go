// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// halfMade is a frame whose checksum the kernel is to make: two bytes at start+offset, over all from start on.
type halfMade struct {
	word          string // in the frame
	frame         []byte
	start, offset int
}

// sendHalfMade sends f from eth0 of ns, as a process with CAP_NET_RAW can (PACKET_VNET_HDR). bypass: past the programs of that device.
func sendHalfMade(t *testing.T, ns interface{ Do(func() error) error }, f halfMade, bypass bool) {
	t.Helper()
	const packetVnetHdr, packetQdiscBypass, needsCsum = 15, 20, 1
	hdr := make([]byte, 10, 10+len(f.frame)) // struct virtio_net_hdr
	hdr[0] = needsCsum
	binary.NativeEndian.PutUint16(hdr[6:], uint16(f.start))
	binary.NativeEndian.PutUint16(hdr[8:], uint16(f.offset))
	err := ns.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetVnetHdr, 1); err != nil {
			return err
		}
		if bypass {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetQdiscBypass, 1); err != nil {
				return err
			}
		}
		return unix.Sendto(fd, append(hdr, f.frame...), 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6})
	})
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINVAL) && strings.HasPrefix(f.word, "forged") {
		return // what netkit says of a drop; some kernels do not let csum_start be in the first 20 bytes
	}
	if err != nil {
		t.Fatalf("%s: %v", f.word, err)
	}
}

// halfMadeFrom makes frames of a sender: what stacks leave to be made, and what only a forger does. Their words begin with honest or forged.
func halfMadeFrom(t *testing.T, srcMAC, dstMAC net.HardwareAddr, src, dst netip.Addr) (all []halfMade) {
	t.Helper()
	const l3 = 14
	l4, srcOff, dstOff, hopOff := l3+20, 12, 16, 8
	if src.Is6() {
		l4, srcOff, dstOff, hopOff = l3+40, 8, 24, 6
	}
	add := func(word string, start, offset int, proto layers.IPProtocol, behind ...gopacket.SerializableLayer) {
		eth := &layers.Ethernet{SrcMAC: srcMAC, DstMAC: dstMAC, EthernetType: layers.EthernetTypeIPv4}
		var ip gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		if src.Is6() {
			eth.EthernetType = layers.EthernetTypeIPv6
			ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		}
		buf := gopacket.NewSerializeBuffer()
		frame := append([]gopacket.SerializableLayer{eth, ip}, append(behind, gopacket.Payload(word+strings.Repeat(" ", 60)))...)
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, frame...); err != nil {
			t.Fatal(err)
		}
		out := buf.Bytes()
		if src.Is4() { // gopacket would make all checksums or none
			out[l3+10], out[l3+11] = 0, 0
			binary.BigEndian.PutUint16(out[l3+10:], e2etest.InternetChecksum(out[l3:l4]))
		}
		all = append(all, halfMade{word, out, start, offset})
	}
	u := func() *layers.UDP { return &layers.UDP{SrcPort: 1000, DstPort: 9000} }
	tcp := func() *layers.TCP {
		return &layers.TCP{SrcPort: 1000, DstPort: 9000, SYN: true, Window: 1000, Seq: 1}
	}
	add("honest-udp", l4, 6, layers.IPProtocolUDP, u())
	add("honest-tcp", l4, 16, layers.IPProtocolTCP, tcp())
	add("honest-sctp", l4, 8, layers.IPProtocolSCTP, gopacket.Payload("\x03\xe8\x23\x28\x00\x00\x00\x00\x00\x00\x00\x00"))
	// A tunnel of the pod: the packet inside is not made.
	add("honest-vxlan", l4+8+8+14+20, 6, layers.IPProtocolUDP, &layers.UDP{SrcPort: 1000, DstPort: 4789}, gopacket.Payload(strings.Repeat("\x08\x00", 25)), u())
	add("honest-gre", l4+4+20, 16, layers.IPProtocolGRE, gopacket.Payload("\x00\x00\x08\x00"+strings.Repeat("\x45\x00", 10)), tcp())
	if src.Is6() {
		add("honest-ext", l4+8, 6, layers.IPProtocolIPv6Destination, gopacket.Payload("\x11\x00\x01\x04\x00\x00\x00\x00"), u())
		add("forged-ext", l4+8, 2, layers.IPProtocolIPv6Destination, gopacket.Payload("\x11\x00\x01\x04\x00\x00\x00\x00"), u())
		add("forged-frag", l4+8, 2, layers.IPProtocolIPv6Fragment, gopacket.Payload("\x11\x00\x00\x01\x00\x00\x00\x07"), u())
	}
	add("forged-port", l4, 2, layers.IPProtocolUDP, u())
	add("forged-sport", l4, 0, layers.IPProtocolUDP, u())
	add("forged-tcp-port", l4, 2, layers.IPProtocolTCP, tcp())
	add("forged-tcp-flags", l4, 12, layers.IPProtocolTCP, tcp())
	add("forged-sctp-port", l4, 2, layers.IPProtocolSCTP, gopacket.Payload("\x03\xe8\x23\x28\x00\x00\x00\x00\x00\x00\x00\x00"))
	const inside = l3 + 8 // some kernels do not let it be in the first 20 bytes
	add("forged-src", inside, srcOff-8, layers.IPProtocolUDP, u())
	add("forged-dst", inside, dstOff+2-8, layers.IPProtocolUDP, u())
	add("forged-proto", l3+hopOff, 0, layers.IPProtocolUDP, u())
	add("forged-mac", 0, 8, layers.IPProtocolUDP, u())
	add("forged-gre-src", inside, srcOff-8, layers.IPProtocolGRE, gopacket.Payload("\x00\x00\x08\x00"))
	echo, icmp := "\x08\x00", layers.IPProtocolICMPv4
	if src.Is6() {
		echo, icmp = "\x80\x00", layers.IPProtocolICMPv6
	}
	add("forged-echo", l4, 0, icmp, gopacket.Payload(echo+"\x00\x00\x00\x07\x00\x01"))
	return all
}

// requireCsumPlace skips where the kernel does not tell the programs where it will write.
func requireCsumPlace(t *testing.T) {
	t.Helper()
	require.Feature(t, "BTF of the kernel", func() error {
		_, err := os.Stat("/sys/kernel/btf/vmlinux")
		if errors.Is(err, fs.ErrNotExist) {
			return require.ErrMissing
		}
		return err
	})
}

// assertCsumPlaces sends all frames and compares what the listener hears.
func assertCsumPlaces(t *testing.T, at, from interface{ Do(func() error) error }, frames []halfMade, bypass bool) {
	t.Helper()
	var words []string
	for _, f := range frames {
		words = append(words, f.word)
	}
	heard := make(map[string]bool)
	e2etest.Eventually(t, 20*time.Second, func() error {
		for w, ok := range hears(t, at, words, func() {
			for _, f := range frames {
				sendHalfMade(t, from, f, bypass)
			}
		}) {
			heard[w] = heard[w] || ok
		}
		for _, w := range words {
			if strings.HasPrefix(w, "honest") && !heard[w] {
				return errors.New(w + " does not arrive")
			}
		}
		return nil
	})
	for _, w := range words {
		if strings.HasPrefix(w, "forged") && heard[w] {
			t.Errorf("%s arrives", w)
		}
	}
}

// A packet socket has the kernel write two bytes into its packet behind every program. They are those of the checksum, or the packet
// goes nowhere: ports, addresses and protocol stay as the programs have judged them.
func TestPrivilegedCsumPlace(t *testing.T) {
	t.Parallel()
	requireCsumPlace(t)
	for _, tt := range []struct {
		name, conf string
		network    func(t *testing.T) e2etest.Network
	}{
		{"veth", "", func(*testing.T) e2etest.Network { return e2etest.Net0() }},
		{"clsact", `{"attach": "clsact"}`, func(*testing.T) e2etest.Network { return e2etest.Net0() }},
		{"no fast path", `{"fastPath": "off"}`, func(*testing.T) e2etest.Network { return e2etest.Net0() }},
		{"ptp", "", func(*testing.T) e2etest.Network { return e2etest.PTPNetwork() }},
		{"netkit", "", func(t *testing.T) e2etest.Network { require.Netkit(t); return netkitNet() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := tt.network(t)
			w := e2etest.NewWorld(t)
			if tt.conf != "" {
				w.Configure(tt.conf)
			}
			pod := w.AddPod(w.Runtime(n), "pod")
			// The uplink makes what is not made: it is the last one that writes.
			if err := w.Node.Do(func() error { return netlab.WithoutTxChecksums("eth0") }); err != nil {
				t.Fatal(err)
			}
			gw := macOfGateway(t, pod)
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				assertCsumPlaces(t, w.Client(), pod, halfMadeFrom(t, macAt(t, pod, "eth0"), gw, fam.Pod(pod), fam.Client(w.Client())), false)
			})
			if w.Drops("pod has a checksum made where the packet has something else") == 0 {
				t.Error("no drop is counted")
			}
		})
	}
}

// macOfGateway is the MAC of what pod routes by.
func macOfGateway(t *testing.T, pod *e2etest.Pod) net.HardwareAddr {
	t.Helper()
	e2etest.MustRun(t, pod, "ping -c 1 -W 5 "+gatewayOf(t, pod))
	for _, field := range strings.Fields(e2etest.MustRun(t, pod, "ip neigh show "+gatewayOf(t, pod))) {
		if mac, err := net.ParseMAC(field); err == nil {
			return mac
		}
	}
	t.Fatal("the gateway has no MAC")
	return nil
}

func gatewayOf(t *testing.T, pod *e2etest.Pod) string {
	t.Helper()
	fields := strings.Fields(e2etest.MustRun(t, pod, "ip -4 route show default"))
	if len(fields) < 3 {
		t.Fatalf("no default route: %v", fields)
	}
	return fields[2]
}

// It holds for devices without a host veth too, at the device and, past its programs, at the parent.
func TestPrivilegedCsumPlacePodns(t *testing.T) {
	t.Parallel()
	requireCsumPlace(t)
	e2etest.EachPodnsKind(t, func(t *testing.T, k e2etest.PodnsKind) {
		if k.Name == "host-device" { // its wire ends at another device of the client; "host-device macvlan" has the same programs
			return
		}
		w := k.NewWorld(t)
		n := k.Network("firewall")
		n.Firewall = e2etest.Attributes{"backend": "ebpf", "rules": e2etest.Attributes{
			"egress": []e2etest.Attributes{{"action": "deny", "ports": []int{9001}}},
		}}
		pod := w.AddPod(w.Runtime(n), "pod")
		client := "eth0"
		if k.Plugin == "vlan" {
			client = "tagged"
		}
		e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
			frames := halfMadeFrom(t, macAt(t, pod, "eth0"), macAt(t, w.Client(), client), fam.Pod(pod), k.ClientAddr(w, fam))
			assertCsumPlaces(t, w.Client(), pod, frames, false)
			if k.Plugin == "host-device" || k.Name == "ipvlan l3" && !bpfsys.KernelAtLeast(6, 12) { // no parent; loses frames of packet sockets
				return
			}
			assertCsumPlaces(t, w.Client(), pod, frames, true)
		})
	})
}

// With macspoofchk alone no program reads more than the link header: that stays as it is, whatever the frame carries.
func TestPrivilegedCsumPlaceMACSpoofChk(t *testing.T) {
	t.Parallel()
	requireCsumPlace(t)
	w := e2etest.NewWorld(t)
	rt := w.Runtime(checkedL2())
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	header := string(macAt(t, other, "eth0")) + string(macAt(t, bad, "eth0")) + "\x88\xb5"
	var frames []halfMade
	for _, f := range []halfMade{{word: "honest", start: 34, offset: 6}, {word: "forged-mac", offset: 6}, {word: "forged-type", offset: 12}} {
		f.frame = []byte(header + f.word + strings.Repeat(" ", 60))
		frames = append(frames, f)
	}
	assertCsumPlaces(t, other, bad, frames, false)
}
