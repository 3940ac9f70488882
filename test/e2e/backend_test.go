// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// backend is a way to carry packets that a node can be told to use.
type backend struct {
	name string // as in attachment records
	conf string // of /etc/sluice/config.json
}

// netfilterBackends are the ways without eBPF.
func netfilterBackends() []backend {
	return []backend{
		{"nftables", `{"backend":"nftables"}`},
		{"iptables-nft", `{"backend":"iptables","iptables":"nft"}`},
		{"iptables-legacy", `{"backend":"iptables","iptables":"legacy"}`},
	}
}

// use tells the node which back end is its default.
func (w *world) use(b backend) {
	w.t.Helper()
	w.configure(b.conf)
}

func (w *world) configure(conf string) {
	w.t.Helper()
	if err := w.Node.Do(func() error { return os.WriteFile("/etc/sluice/config.json", []byte(conf), 0o644) }); err != nil {
		w.t.Fatal(err)
	}
}

// eachNetfilter runs f in a world of its own for each of netfilterBackends.
func eachNetfilter(t *testing.T, f func(t *testing.T, w *world, b backend)) {
	t.Helper()
	for _, b := range netfilterBackends() {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.use(b)
			f(t, w, b)
		})
	}
}

// after makes and removes a pod, and returns what the node is like then.
func (w *world) after(rt *netlab.Runtime, ports ...mapping) netlab.Snapshot {
	w.t.Helper()
	p := w.add(rt, "settle", ports...)
	p.mustDel()
	if err := p.Delete(); err != nil {
		w.t.Fatal(err)
	}
	return w.snapshot()
}

func (w *world) same(before netlab.Snapshot, when string) {
	w.t.Helper()
	if d := netlab.DiffSoon(before, w.snapshot); d != "" {
		w.t.Errorf("%s the node differs (- gone, + left behind):\n%s", when, d)
	}
}

func noDatapath(t *testing.T, w *world) {
	t.Helper()
	for _, line := range w.snapshot() {
		if strings.HasPrefix(line, "file /sys/fs/bpf/sluice") || strings.HasPrefix(line, "tcx ") || strings.HasPrefix(line, "filter ") {
			t.Errorf("a netfilter back end has loaded eBPF: %s", line)
		}
	}
}

// What users see of hostPorts and masquerading is the same without eBPF.
func TestPrivilegedNetfilterTraffic(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
		rt := w.runtime(network{extra: attributes{"hairpinMode": true}}) // or the bridge does not let a pod reach itself
		before := w.after(rt, tcp(8080, 80))
		a := w.add(rt, "a", tcp(8080, 80), udp(8080, 80))
		b := w.add(rt, "b", tcp(8081, 80), udp(8081, 80))
		serve(t, a, "a", ":80")
		serve(t, b, "b", ":80")
		serve(t, w.Client(), "client", ":7000")
		c := w.Client()
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			if got := ask(t, c, proto, at(fam.node(c), 8080)); got.name != "a" || got.peer.Addr() != fam.client(c) {
				t.Errorf("from outside: %s saw %s, want a and %s", got.name, got.peer, fam.client(c))
			}
			if got := ask(t, w.Node, proto, at(fam.node(c), 8081)); got.name != "b" {
				t.Errorf("from the node by its address: %s", got.name)
			}
			for _, p := range []*pod{a, b} { // hairpin and sibling
				if got := ask(t, p, proto, at(fam.node(c), 8080)); got.name != "a" {
					t.Errorf("from pod %s: %s", p.Name, got.name)
				}
			}
			if got := ask(t, a, proto, at(fam.client(c), 7000)); got.peer.Addr() != fam.node(c) {
				t.Errorf("masqueraded: the client saw %s, want %s", got.peer, fam.node(c))
			}
			if got := ask(t, a, proto, at(fam.pod(b), 80)); got.peer.Addr() != fam.pod(a) {
				t.Errorf("inside the subnet: b saw %s, want %s", got.peer, fam.pod(a))
			}
		})
		for _, proto := range []string{"tcp", "udp"} {
			if got := ask(t, w.Node, proto, "127.0.0.1:8080"); got.name != "a" {
				t.Errorf("%s from 127.0.0.1: %s", proto, got.name)
			}
		}
		for _, p := range []*pod{a, b} {
			if err := p.check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		}
		noDatapath(t, w)
		for _, p := range []*pod{a, b, a} {
			p.mustDel()
		}
		for _, p := range []*pod{a, b} {
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}
		w.same(before, "after DEL")
	})
}

// A DEL that knows nothing but the attachment's name leaves nothing.
func TestPrivilegedNetfilterPoorDel(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
		rt := w.runtime(net0())
		before := w.after(rt, tcp(8080, 80))
		p := w.add(rt, "a", tcp(8080, 80), udp(53, 53))
		if err := rt.ForgetCache(p.att); err != nil { // no prevResult
			t.Fatal(err)
		}
		p.att.Capabilities, p.att.NetNS = nil, "" // no runtimeConfig, no namespace
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		p.mustDel()
		w.same(before, "after a poor DEL")
	})
}

// The last ADD of a port has it, a port of one address comes before one of all,
// and a repeated ADD leaves one set of rules.
func TestPrivilegedNetfilterPrecedence(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
		rt, c := w.runtime(net0()), w.Client()
		before := w.after(rt, tcp(8080, 80))
		one := w.add(rt, "one", tcp(8080, 80).on(netlab.IP4(c.Uplink.Node)), tcp(8080, 80).on(netlab.IP6(c.Uplink.Node)))
		old := w.add(rt, "old", tcp(8080, 80), tcp(8090, 80))
		young := w.add(rt, "young", tcp(8080, 80), tcp(8090, 80))
		for _, p := range []*pod{one, old, young} {
			serve(t, p, p.Name, ":80")
		}
		eachFamily(t, func(t *testing.T, fam family) {
			if got := ask(t, c, "tcp", at(fam.node(c), 8080)); got.name != "one" {
				t.Errorf("a port of this address: %s", got.name)
			}
			if got := ask(t, c, "tcp", at(fam.node(c), 8090)); got.name != "young" {
				t.Errorf("a port of every address: %s", got.name)
			}
		})
		for _, p := range []*pod{one, young, old} {
			p.mustDel()
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}
		w.same(before, "after DEL")
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
			w := newWorld(t)
			w.configure(`{"bpffs":"/run/nobpf"}`)
			if err := w.Node.Do(func() error {
				// A file where the file system should be mounted: eBPF cannot run.
				if err := os.WriteFile("/run/nobpf", nil, 0o600); err != nil {
					return err
				}
				return os.WriteFile("/run/rules", []byte("table inet mine { chain c { type filter hook forward priority 0; ip saddr 192.0.2.99 drop; }; }"), 0o600)
			}); err != nil {
				t.Fatal(err)
			}
			sh(t, w.Node, tt.prepare)
			p := w.add(w.runtime(net0()), "a", tcp(8080, 80))
			serve(t, p, "a", ":80")
			eachFamily(t, func(t *testing.T, fam family) {
				if got := ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080)); got.name != "a" {
					t.Errorf("answered by %s", got.name)
				}
			})
			record := sh(t, w.Node, "grep -r backend /run/sluice/attachments")
			if want := fmt.Sprintf(`"backend": %q`, tt.want); !strings.Contains(strings.ReplaceAll(record, `":"`, `": "`), want) {
				t.Errorf("the record does not say %s:\n%s", want, record)
			}
			status := sh(t, w.Node, programs.Path("sluice")+" status")
			if !strings.Contains(status, tt.want) {
				t.Errorf("sluice status does not name %s:\n%s", tt.want, status)
			}
			p.mustDel()
		})
	}
}

// A mapping that eBPF cannot do falls back alone, and the log says which and why.
func TestPrivilegedMappingFallsBack(t *testing.T) {
	w := newWorld(t)
	rt := w.runtime(net0())
	before := w.settled(rt, tcp(8080, 80))
	p := w.add(rt, "a", tcp(8080, 80), mapping{HostPort: 9, ContainerPort: 10, Protocol: "sctp"})
	serve(t, p, "a", ":80")
	eachFamily(t, func(t *testing.T, fam family) {
		if got := ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080)); got.name != "a" {
			t.Errorf("answered by %s", got.name)
		}
	})
	if out := sh(t, w.Node, programs.Path("sluice")+" hostports"); !strings.Contains(out, "8080") || strings.Contains(out, "sctp") {
		t.Errorf("the datapath has:\n%s", out)
	}
	if out := sh(t, w.Node, "iptables-nft-save -t nat"); !strings.Contains(out, "--dport 9 -j DNAT") || strings.Contains(out, "8080") {
		t.Errorf("iptables has:\n%s", out)
	}
	if log := w.stderr.String(); !strings.Contains(log, "a mapping falls back to netfilter") || !strings.Contains(log, "0.0.0.0:9/sctp") {
		t.Errorf("the log does not say so:\n%s", log)
	}
	if err := p.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	p.mustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	left := func() netlab.Snapshot {
		return w.steady().Without("nft table ip nat", "nft table ip6 nat", "nft table ip mangle", "file /run/sluice/netfilter")
	}
	if d := netlab.DiffSoon(before, left); d != "" {
		t.Errorf("the node differs (- gone, + left behind):\n%s", d)
	}
	if out := sh(t, w.Node, "iptables-nft-save -t nat"); strings.Contains(out, "CNI-DN-") {
		t.Errorf("iptables has still:\n%s", out)
	}
}

// Conditions are those of the attachment that has them, and of no other.
func TestPrivilegedNetfilterConditions(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, b backend) {
		strict := net0()
		strict.portmap = attributes{"conditionsV4": []string{"!", "-s", "192.0.2.2"}, "conditionsV6": []string{"!", "-s", "2001:db8:1::2"}}
		if b.name == "nftables" {
			strict.portmap = attributes{"conditionsV4": []string{"ip", "saddr", "!=", "192.0.2.2"}, "conditionsV6": []string{"ip6", "saddr", "!=", "2001:db8:1::2"}}
		}
		open := w.add(w.runtime(net1()), "open", tcp(8080, 80))
		shut := w.add(w.runtime(strict), "shut", tcp(8081, 80))
		for _, p := range []*pod{open, shut} {
			serve(t, p, p.Name, ":80")
			if err := p.check(); err != nil {
				t.Errorf("CHECK %s: %v", p.Name, err)
			}
		}
		eachFamily(t, func(t *testing.T, fam family) {
			if got := ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080)); got.name != "open" {
				t.Errorf("without conditions: %s", got.name)
			}
			refused(t, w.Client(), "tcp", at(fam.node(w.Client()), 8081))
			if got := ask(t, open, "tcp", at(fam.node(w.Client()), 8081)); got.name != "shut" {
				t.Errorf("from elsewhere: %s", got.name)
			}
		})
		shut.mustDel()
		open.mustDel()
	})
}

// Who is behind the pods' bridge does not reach what listens on 127.0.0.1 of the
// node, though route_localnet is on, and the last pod turns it off.
func TestPrivilegedLocalnetIsGuarded(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, b backend) {
		rt := w.runtime(net0())
		p := w.add(rt, "a", tcp(8080, 80))
		setting := func() string {
			return strings.TrimSpace(sh(t, w.Node, "cat /proc/sys/net/ipv4/conf/cni0/route_localnet"))
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
			p.sendToLoopback(w.bridgeMAC("cni0"), 7777)
			if err := pc.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, _, err := pc.ReadFrom(make([]byte, 64))
			return err == nil
		}
		if arrives() {
			t.Error("a pod reached 127.0.0.1 of the node")
		}
		off := map[string]string{"nftables": "nft flush chain ip sluice_localnet prerouting"}[b.name]
		if off == "" {
			off = b.name + " -t mangle -F PREROUTING"
		}
		if sh(t, w.Node, off); !arrives() {
			t.Error("without the guard it does not arrive either: the test proves nothing")
		}
		second := w.add(rt, "b", tcp(8090, 80))
		p.mustDel()
		if got := setting(); got != "1" {
			t.Errorf("route_localnet is %s while a pod relies on it", got)
		}
		second.mustDel()
		if got := setting(); got != "0" {
			t.Errorf("route_localnet is %s after the last DEL", got)
		}
	})
}

// sendToLoopback puts a datagram for 127.0.0.1 on the pod's wire. UDP over IPv4
// needs no checksum (RFC 768).
func (p *pod) sendToLoopback(to net.HardwareAddr, port uint16) {
	p.t.Helper()
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
		p.t.Fatal(err)
	}
}

func (w *world) bridgeMAC(name string) net.HardwareAddr {
	w.t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(sh(w.t, w.Node, "cat /sys/class/net/"+name+"/address")))
	if err != nil {
		w.t.Fatal(err)
	}
	return mac
}

// A UDP client that never stops reaches the new owner of a port, and nobody once
// that one is gone: the kernel's connection table does not keep the old way.
func TestPrivilegedNetfilterUDPMoves(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
		rt, c := w.runtime(net0()), w.Client()
		old := w.add(rt, "old", udp(8080, 80))
		serve(t, old, "old", ":80")
		young := w.newPod(rt, "young", udp(8080, 80))
		serve(t, young, "young", ":80")
		var talks []*talk
		for _, fam := range families() {
			conn, err := dial(c, "udp"+fam.suffix, "", at(fam.node(c), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			talks = append(talks, conn)
		}
		young.mustAdd()
		for i, fam := range families() {
			if err := talks[i].say("again"); err != nil || talks[i].answer.name != "young" {
				t.Errorf("%s: answered by %q, %v, want young", fam.name, talks[i].answer.name, err)
			}
		}
		old.mustDel()
		young.mustDel()
		for i, fam := range families() {
			talks[i].limit = 500 * time.Millisecond
			if err := talks[i].say("anybody?"); err == nil {
				t.Errorf("%s: answered by %q after the last DEL", fam.name, talks[i].answer.name)
			}
		}
	})
}

// ptp masquerades by the same tables, checks them and takes them back.
func TestPrivilegedNetfilterPTP(t *testing.T) {
	eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
		rt := w.runtime(network{main: "ptp"})
		before := w.after(rt, tcp(8080, 80))
		p := w.add(rt, "a", tcp(8080, 80))
		serve(t, p, "a", ":80")
		serve(t, w.Client(), "client", ":7000")
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			if got := ask(t, p, proto, at(fam.client(w.Client()), 7000)); got.peer.Addr() != fam.node(w.Client()) {
				t.Errorf("the client saw %s, want %s", got.peer, fam.node(w.Client()))
			}
		})
		if got := ask(t, w.Node, "tcp", "127.0.0.1:8080"); got.name != "a" {
			t.Errorf("from 127.0.0.1: %s", got.name)
		}
		if err := p.check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		p.mustDel()
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		w.same(before, "after DEL")
	})
}
