// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// handover is a node where both suites work on one network.
type handover struct {
	*world
	backend   backend
	reference *netlab.Runtime
	ours      *netlab.Runtime
}

// eachHandover runs f for each kind of tables. The reference's firewall knows
// iptables alone.
func eachHandover(t *testing.T, f func(t *testing.T, h *handover)) {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "bridge", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range netfilterBackends() {
		t.Run(b.name, func(t *testing.T) {
			if b.name == "iptables-legacy" {
				preferLegacy(t)
			}
			h := &handover{world: newWorld(t), backend: b}
			h.use(b)
			kind, _, _ := strings.Cut(b.name, "-")
			n := network{extra: attributes{"ipMasqBackend": kind}, portmap: attributes{"backend": kind}}
			if kind == "nftables" {
				n.plugins = []string{"portmap"}
			}
			h.ours = h.runtime(n)
			if h.reference, err = h.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.conflist(t), Stderr: h.stderr}); err != nil {
				t.Fatal(err)
			}
			f(t, h)
		})
	}
}

// preferLegacy makes iptables the legacy variant for the programs that the test
// starts.
func preferLegacy(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.Symlink("/usr/sbin/xtables-legacy-multi", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// by is the pod as another runtime sees it.
func (p *pod) by(rt *netlab.Runtime) *pod {
	other := *p
	other.rt = rt
	return &other
}

func (h *handover) pod(rt *netlab.Runtime, name string) *pod {
	h.t.Helper()
	p := h.add(rt, name, tcp(8080, 80), udp(8080, 80), tcp(8443, 443))
	serve(h.t, p, name, ":80")
	for _, fam := range families() {
		if got := ask(h.t, h.Client(), "tcp", at(fam.node(h.Client()), 8080)); got.name != name {
			h.t.Fatalf("%s: answered by %s, want %s", fam.name, got.name, name)
		}
	}
	marks := map[string]string{
		"nftables": "nft table ip cni_hostport", "iptables-nft": "nft table ip nat > chain CNI-DN-", "iptables-legacy": "iptables iptables-legacy-save -A CNI-DN-",
	}
	if len(rules(h.snapshot()).Grep(marks[h.backend.name])) == 0 {
		h.t.Fatalf("the ports are not in the tables of %s", h.backend.name)
	}
	return p
}

func (h *handover) gone(p *pod) {
	h.t.Helper()
	if err := p.Delete(); err != nil {
		h.t.Fatal(err)
	}
}

// rules is the netfilter part of a snapshot, without the guard of route_localnet,
// which the reference leaves on like the setting that it guards.
func rules(s netlab.Snapshot) netlab.Snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(l string) bool {
		return !strings.HasPrefix(l, "nft ") && !strings.HasPrefix(l, "iptables ") ||
			strings.Contains(l, "sluice_localnet") || strings.Contains(l, "sluice: no 127.0.0.0/8") || strings.Contains(l, "table ip mangle")
	})
}

func (h *handover) sameRules(before netlab.Snapshot, when string) {
	h.t.Helper()
	if d := netlab.Diff(rules(before), rules(h.snapshot())); d != "" {
		h.t.Errorf("%s the rules differ (- gone, + left behind):\n%s", when, d)
	}
}

// What the reference made, our DEL removes; only its own shared chains stay, as
// after its own DEL.
func TestPrivilegedDelOfReference(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		before := h.after(h.reference, tcp(8080, 80))
		p := h.pod(h.reference, "a")
		p.by(h.ours).mustDel()
		h.gone(p)
		h.sameRules(before, "after our DEL")
		if left := h.snapshot().Grep("link veth"); len(left) > 0 {
			t.Errorf("after our DEL: %s", left)
		}

		p = h.pod(h.reference, "b") // the runtime has forgotten the ports
		p.att.Capabilities = nil
		p.by(h.ours).mustDel()
		h.gone(p)
		h.sameRules(before, "after our DEL without runtimeConfig")
	})
}

// The reference's pods go on running when its programs have been replaced by ours, and are healthy to our CHECK.
func TestPrivilegedCheckOfReference(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		node := families()[0].node(h.Client())
		p := h.add(h.reference, "a", tcp(8080, 80), tcp(8081, 80).on(node), udp(8082, 80).on(node))
		mustCheck(t, p.by(h.ours))
		script := map[string]string{
			"nftables":        "nft flush chain ip cni_hostport hostports",
			"iptables-nft":    "iptables-nft -t nat -F CNI-HOSTPORT-DNAT",
			"iptables-legacy": "iptables-legacy -t nat -F CNI-HOSTPORT-DNAT",
		}
		sh(t, h.Node, script[h.backend.name])
		if err := p.by(h.ours).check(); err == nil {
			t.Error("CHECK does not see that nothing leads to the pod")
		}
		p.by(h.ours).mustDel()
	})
}

// The same with a conflist that names no back end: the reference's pods are iptables', and our next ones eBPF's.
func TestPrivilegedHandoverToEBPF(t *testing.T) {
	dir, err := testbin.Reference(t.Context(), "bridge", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	ours := w.runtime(net0())
	reference, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: net0().conflist(t), Stderr: w.stderr})
	if err != nil {
		t.Fatal(err)
	}
	before := w.after(reference, tcp(8080, 80))
	p := w.add(reference, "a", tcp(8080, 80), tcp(8081, 80).on(families()[0].node(w.Client())))
	serve(t, p, "a", ":80")
	serve(t, w.add(ours, "b", tcp(8090, 80)), "b", ":80")
	mustCheck(t, p.by(ours))
	eachFamily(t, func(t *testing.T, fam family) {
		for port, name := range map[uint16]string{8080: "a", 8090: "b"} {
			if got := ask(t, w.Client(), "tcp"+fam.suffix, at(fam.node(w.Client()), port)); got.name != name {
				t.Errorf("port %d: answered by %s, want %s", port, got.name, name)
			}
		}
	})
	p.by(ours).mustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	if d := netlab.Diff(rules(before), rules(w.snapshot())); d != "" {
		t.Errorf("after our DEL the rules differ (- gone, + left behind):\n%s", d)
	}
}

// What we made, the reference's DEL removes, as far as it knows it: our records
// stay until our GC.
func TestPrivilegedReferenceDelOfOurs(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		h.after(h.ours, tcp(8080, 80))
		before := h.after(h.reference, tcp(8080, 80))
		p := h.pod(h.ours, "a")
		p.by(h.reference).mustDel()
		h.gone(p)
		h.sameRules(before, "after the reference's DEL")

		if err := h.ours.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		if left := h.snapshot().Grep("/run/sluice/attachments/").Grep(".json"); len(left) > 0 {
			t.Errorf("after our GC: %s", left)
		}
		h.sameRules(before, "after our GC")
	})
}

// GC removes what the reference made and nobody remembers, where the rules name
// the network: masquerading, and the ports of iptables.
func TestPrivilegedGCOfReference(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		before := h.after(h.reference, tcp(8080, 80))
		p := h.pod(h.reference, "a")
		if err := h.reference.ForgetCache(p.att); err != nil {
			t.Fatal(err)
		}
		h.gone(p)
		if err := h.ours.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		left := slices.DeleteFunc(strings.Split(netlab.Diff(rules(before), rules(h.snapshot())), "\n"), func(l string) bool {
			// A rule that holds nothing but an address or a container's name cannot be told from another network's.
			return l == "" || strings.Contains(l, "CNI-FORWARD") || strings.Contains(l, "table ip filter") || strings.Contains(l, "table ip6 filter") || strings.Contains(l, "table ip cni_hostport") || strings.Contains(l, "table ip6 cni_hostport")
		})
		if len(left) > 0 {
			t.Errorf("after our GC:\n%s", strings.Join(left, "\n"))
		}
	})
}

// A pod that one back end of ours attached is removed when the node uses another
// by then, with its record and without.
func TestPrivilegedDelAcrossBackends(t *testing.T) {
	all := append([]backend{{"ebpf", `{}`}}, netfilterBackends()...)
	for i, from := range all {
		to := all[(i+1)%len(all)]
		t.Run(from.name+" to "+to.name, func(t *testing.T) {
			w := newWorld(t)
			rt := w.runtime(net0())
			for _, b := range []backend{from, to, from} { // what stays by design, also of one in the chains of the other
				w.use(b)
				w.after(rt, tcp(8080, 80))
			}
			w.use(from)
			before := w.steady()
			for _, lost := range []bool{false, true} {
				w.use(from)
				p := w.add(rt, "a", tcp(8080, 80), udp(53, 53))
				if lost {
					sh(t, w.Node, "rm -r /run/sluice/attachments")
				}
				w.use(to)
				p.mustDel()
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				w.use(from)
				left := func() netlab.Snapshot { return w.steady().Without("file /run/sluice/attachments") }
				if d := netlab.DiffSoon(before.Without("file /run/sluice/attachments"), left); d != "" {
					t.Errorf("record lost: %v: the node differs (- gone, + left behind):\n%s", lost, d)
				}
			}
		})
	}
}
