// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// eachNetfilterBackend runs f in a world of its own for each backend without eBPF, in
// parallel: when it returns, nothing has run yet.
func eachNetfilterBackend(t *testing.T, f func(t *testing.T, w *e2etest.World, b e2etest.Backend)) {
	t.Helper()
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			f(t, w, b)
		})
	}
}

func noDatapath(t *testing.T, w *e2etest.World) {
	t.Helper()
	for _, line := range w.Snapshot() {
		if strings.HasPrefix(line, "file /sys/fs/bpf/sluice") || strings.HasPrefix(line, "tcx ") || strings.HasPrefix(line, "filter ") {
			t.Errorf("a netfilter back end has loaded eBPF: %s", line)
		}
	}
}

// What users see of hostPorts and masquerading is the same without eBPF.
func TestPrivilegedNetfilterTraffic(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
		rt := w.Runtime(e2etest.Network{Extra: e2etest.Attributes{"hairpinMode": true}}) // or the bridge does not let a pod reach itself
		before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
		a := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
		b := w.AddPod(rt, "b", e2etest.TCP(8081, 80), e2etest.UDP(8081, 80))
		e2etest.Serve(t, a, "a", ":80")
		e2etest.Serve(t, b, "b", ":80")
		e2etest.Serve(t, w.Client(), "client", ":7000")
		c := w.Client()
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, c, proto, e2etest.At(fam.Node(c), 8080)); got.Server != "a" || got.Peer.Addr() != fam.Client(c) {
				t.Errorf("from outside: %s saw %s, want a and %s", got.Server, got.Peer, fam.Client(c))
			}
			if got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Node(c), 8081)); got.Server != "b" {
				t.Errorf("from the node by its address: %s", got.Server)
			}
			for _, p := range []*e2etest.Pod{a, b} { // hairpin and sibling
				if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Node(c), 8080)); got.Server != "a" {
					t.Errorf("from pod %s: %s", p.Name, got.Server)
				}
			}
			if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Client(c), 7000)); got.Peer.Addr() != fam.Node(c) {
				t.Errorf("masqueraded: the client saw %s, want %s", got.Peer, fam.Node(c))
			}
			if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80)); got.Peer.Addr() != fam.Pod(a) {
				t.Errorf("inside the subnet: b saw %s, want %s", got.Peer, fam.Pod(a))
			}
		})
		for _, proto := range []string{"tcp", "udp"} {
			if got := e2etest.Ask(t, w.Node, proto, "127.0.0.1:8080"); got.Server != "a" {
				t.Errorf("%s from 127.0.0.1: %s", proto, got.Server)
			}
		}
		for _, p := range []*e2etest.Pod{a, b} {
			if err := p.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		}
		noDatapath(t, w)
		for _, p := range []*e2etest.Pod{a, b, a} {
			p.MustDel()
		}
		for _, p := range []*e2etest.Pod{a, b} {
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}
		w.AssertUnchanged(before, "after DEL")
	})
}

// A DEL that knows nothing but the attachment's name leaves nothing.
func TestPrivilegedNetfilterPoorDel(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
		rt := w.Runtime(e2etest.Net0())
		before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
		p := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.UDP(53, 53))
		if err := rt.ForgetCache(p.Attachment); err != nil { // no prevResult
			t.Fatal(err)
		}
		p.Attachment.Capabilities, p.Attachment.NetNS = nil, "" // no runtimeConfig, no namespace
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		p.MustDel()
		w.AssertUnchanged(before, "after a poor DEL")
	})
}

// The last ADD of a port has it, a port of one address comes before one of all,
// and a repeated ADD leaves one set of rules.
func TestPrivilegedNetfilterPrecedence(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
		rt, c := w.Runtime(e2etest.Net0()), w.Client()
		before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
		one := w.AddPod(rt, "one", e2etest.TCP(8080, 80).OnAddress(netlab.IP4(c.Uplink.Node)), e2etest.TCP(8080, 80).OnAddress(netlab.IP6(c.Uplink.Node)))
		old := w.AddPod(rt, "old", e2etest.TCP(8080, 80), e2etest.TCP(8090, 80))
		young := w.AddPod(rt, "young", e2etest.TCP(8080, 80), e2etest.TCP(8090, 80))
		for _, p := range []*e2etest.Pod{one, old, young} {
			e2etest.Serve(t, p, p.Name, ":80")
		}
		e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
			if got := e2etest.Ask(t, c, "tcp", e2etest.At(fam.Node(c), 8080)); got.Server != "one" {
				t.Errorf("a port of this address: %s", got.Server)
			}
			if got := e2etest.Ask(t, c, "tcp", e2etest.At(fam.Node(c), 8090)); got.Server != "young" {
				t.Errorf("a port of every address: %s", got.Server)
			}
		})
		for _, p := range []*e2etest.Pod{one, young, old} {
			p.MustDel()
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}
		w.AssertUnchanged(before, "after DEL")
	})
}

// auto falls back where eBPF cannot run, takes what the node uses, and says so.
func TestPrivilegedFallback(t *testing.T) {
	tests := []struct {
		name, prepare, want string
	}{
		{"nothing in use", "true", "iptables-nft"},
		{"iptables-nft", "iptables-nft -A FORWARD -s 192.0.2.99 -j DROP", "iptables-nft"},
		{"iptables-legacy", "iptables-legacy -A FORWARD -s 192.0.2.99 -j DROP", "iptables-legacy"},
		{"legacy tables that are empty", "iptables-legacy -L -n", "iptables-nft"},
		{"nftables", "nft -f /run/rules", "nftables"},
		{"a hint of Kubernetes", "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", "iptables-legacy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			w.Configure(`{"bpffs":"/run/nobpf"}`)
			if err := w.Node.Do(func() error {
				// A file where the file system should be mounted: eBPF cannot run.
				if err := os.WriteFile("/run/nobpf", nil, 0o600); err != nil {
					return err
				}
				return os.WriteFile("/run/rules", []byte("table inet mine { chain c { type filter hook forward priority 0; ip saddr 192.0.2.99 drop; }; }"), 0o600)
			}); err != nil {
				t.Fatal(err)
			}
			e2etest.MustRun(t, w.Node, tt.prepare)
			p := w.AddPod(w.Runtime(e2etest.Net0()), "a", e2etest.TCP(8080, 80))
			e2etest.Serve(t, p, "a", ":80")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "a" {
					t.Errorf("answered by %s", got.Server)
				}
			})
			record := e2etest.MustRun(t, w.Node, "grep -r backend /run/sluice/attachments")
			if want := fmt.Sprintf(`"backend": %q`, tt.want); !strings.Contains(strings.ReplaceAll(record, `":"`, `": "`), want) {
				t.Errorf("the record does not say %s:\n%s", want, record)
			}
			status := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" status")
			if !strings.Contains(status, tt.want) {
				t.Errorf("sluice status does not name %s:\n%s", tt.want, status)
			}
			p.MustDel()
		})
	}
}

// A mapping that eBPF cannot do falls back alone, and the log says which and why.
func TestPrivilegedMappingFallsBack(t *testing.T) {
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	before := w.Warmup(rt, e2etest.TCP(8080, 80))
	p := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.PortMapping{HostPort: 9, ContainerPort: 10, Protocol: "sctp"})
	e2etest.Serve(t, p, "a", ":80")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "a" {
			t.Errorf("answered by %s", got.Server)
		}
	})
	if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" hostports"); !strings.Contains(out, "8080") || !onlyClaimed(out, "sctp") {
		t.Errorf("the datapath has:\n%s", out)
	}
	if out := e2etest.MustRun(t, w.Node, "iptables-nft-save -t nat"); !strings.Contains(out, "--dport 9 -j DNAT") || strings.Contains(out, "8080") {
		t.Errorf("iptables has:\n%s", out)
	}
	if log := w.Stderr.String(); !strings.Contains(log, "a mapping falls back to netfilter") || !strings.Contains(log, "0.0.0.0:9/sctp") {
		t.Errorf("the log does not say so:\n%s", log)
	}
	if err := p.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	p.MustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	left := func() netlab.Snapshot {
		return w.SyncedSnapshot().Without("nft table ip nat", "nft table ip6 nat", "nft table ip mangle", "file /run/sluice/netfilter")
	}
	if d := netlab.DiffSoon(before, left); d != "" {
		t.Errorf("the node differs (- gone, + left behind):\n%s", d)
	}
	if out := e2etest.MustRun(t, w.Node, "iptables-nft-save -t nat"); strings.Contains(out, "CNI-DN-") {
		t.Errorf("iptables has still:\n%s", out)
	}
}

// Conditions are those of the attachment that has them, and of no other.
func TestPrivilegedNetfilterConditions(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, b e2etest.Backend) {
		strict := e2etest.Net0()
		strict.Portmap = e2etest.Attributes{"conditionsV4": []string{"!", "-s", "192.0.2.2"}, "conditionsV6": []string{"!", "-s", "2001:db8:1::2"}}
		if b.Name == "nftables" {
			strict.Portmap = e2etest.Attributes{"conditionsV4": []string{"ip", "saddr", "!=", "192.0.2.2"}, "conditionsV6": []string{"ip6", "saddr", "!=", "2001:db8:1::2"}}
		}
		open := w.AddPod(w.Runtime(e2etest.Net1()), "open", e2etest.TCP(8080, 80))
		shut := w.AddPod(w.Runtime(strict), "shut", e2etest.TCP(8081, 80))
		for _, p := range []*e2etest.Pod{open, shut} {
			e2etest.Serve(t, p, p.Name, ":80")
			if err := p.Check(); err != nil {
				t.Errorf("CHECK %s: %v", p.Name, err)
			}
		}
		e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
			if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "open" {
				t.Errorf("without conditions: %s", got.Server)
			}
			e2etest.AssertNoAnswer(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8081))
			if got := e2etest.Ask(t, open, "tcp", e2etest.At(fam.Node(w.Client()), 8081)); got.Server != "shut" {
				t.Errorf("from elsewhere: %s", got.Server)
			}
		})
		shut.MustDel()
		open.MustDel()
	})
}

// Who is behind the pods' bridge does not reach what listens on 127.0.0.1 of the
// node, though route_localnet is on, and the last pod turns it off.
func TestPrivilegedLocalnetIsGuarded(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, b e2etest.Backend) {
		rt := w.Runtime(e2etest.Net0())
		p := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
		setting := func() string {
			return strings.TrimSpace(e2etest.MustRun(t, w.Node, "cat /proc/sys/net/ipv4/conf/cni0/route_localnet"))
		}
		if got := setting(); got != "1" {
			t.Errorf("route_localnet is %s", got)
		}
		pc, err := w.Node.ListenPacket("udp4", "127.0.0.1:7777")
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		arrives := func() bool {
			sendToLoopback(p, bridgeMAC(w, "cni0"), 7777)
			if err := pc.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, _, err := pc.ReadFrom(make([]byte, 64))
			return err == nil
		}
		if arrives() {
			t.Error("a pod reached 127.0.0.1 of the node")
		}
		off := map[string]string{"nftables": "nft flush chain ip sluice_localnet prerouting"}[b.Name]
		if off == "" {
			off = b.Name + " -t mangle -F PREROUTING"
		}
		if e2etest.MustRun(t, w.Node, off); !arrives() {
			t.Error("without the guard it does not arrive either: the test proves nothing")
		}
		second := w.AddPod(rt, "b", e2etest.TCP(8090, 80))
		p.MustDel()
		if got := setting(); got != "1" {
			t.Errorf("route_localnet is %s while a pod relies on it", got)
		}
		second.MustDel()
		if got := setting(); got != "0" {
			t.Errorf("route_localnet is %s after the last DEL", got)
		}
	})
}

// sendToLoopback puts a datagram for 127.0.0.1 on the pod's wire. UDP over IPv4
// needs no checksum (RFC 768).
func sendToLoopback(p *e2etest.Pod, to net.HardwareAddr, port uint16) {
	p.T.Helper()
	src := p.IP4.As4()
	ip := []byte{0x45, 0, 0, 29, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, src[0], src[1], src[2], src[3], 127, 0, 0, 1}
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	l4 := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, port)
	packet := append(append(ip, l4...), 0, 9, 0, 0, 'x')
	err := p.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		addr := &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: dev.Index, Halen: 6} // ETH_P_IP, big endian
		copy(addr.Addr[:], to)
		return unix.Sendto(fd, packet, 0, addr)
	})
	if err != nil {
		p.T.Fatal(err)
	}
}

func bridgeMAC(w *e2etest.World, name string) net.HardwareAddr {
	w.T.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(e2etest.MustRun(w.T, w.Node, "cat /sys/class/net/"+name+"/address")))
	if err != nil {
		w.T.Fatal(err)
	}
	return mac
}

// A UDP client that never stops reaches the new owner of a port, and no pod once
// that one is gone: the kernel's connection table does not keep the old way.
func TestPrivilegedNetfilterUDPMoves(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
		rt, c := w.Runtime(e2etest.Net0()), w.Client()
		old := w.AddPod(rt, "old", e2etest.UDP(8080, 80))
		e2etest.Serve(t, old, "old", ":80")
		young := w.NewPod(rt, "young", e2etest.UDP(8080, 80))
		e2etest.Serve(t, young, "young", ":80")
		var talks []*e2etest.Talk
		for _, fam := range e2etest.Families() {
			conn, err := e2etest.Dial(c, "udp"+fam.Suffix, "", e2etest.At(fam.Node(c), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			talks = append(talks, conn)
		}
		young.MustAdd()
		for i, fam := range e2etest.Families() {
			if err := talks[i].Send("again"); err != nil || talks[i].Answer.Server != "young" {
				t.Errorf("%s: answered by %q, %v, want young", fam.Name, talks[i].Answer.Server, err)
			}
		}
		old.MustDel()
		young.MustDel()
		for i, fam := range e2etest.Families() {
			talks[i].Timeout = 500 * time.Millisecond
			if err := talks[i].Send("anybody?"); err == nil {
				t.Errorf("%s: answered by %q after the last DEL", fam.Name, talks[i].Answer.Server)
			}
		}
	})
}

// ptp masquerades by the same tables, checks them and takes them back.
func TestPrivilegedNetfilterPTP(t *testing.T) {
	eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
		rt := w.Runtime(e2etest.Network{Main: "ptp"})
		before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
		p := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
		e2etest.Serve(t, p, "a", ":80")
		e2etest.Serve(t, w.Client(), "client", ":7000")
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 7000)); got.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("the client saw %s, want %s", got.Peer, fam.Node(w.Client()))
			}
		})
		if got := e2etest.Ask(t, w.Node, "tcp", "127.0.0.1:8080"); got.Server != "a" {
			t.Errorf("from 127.0.0.1: %s", got.Server)
		}
		if err := p.Check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		p.MustDel()
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		w.AssertUnchanged(before, "after DEL")
	})
}

// onlyClaimed reports that a list of hostPorts leaves those of a protocol to netfilter, and has some.
func onlyClaimed(list, proto string) bool {
	found := false
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, proto) {
			continue
		}
		if found = true; !strings.Contains(line, " netfilter ") {
			return false
		}
	}
	return found
}
