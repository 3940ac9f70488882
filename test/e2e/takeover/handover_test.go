// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// handover is a node where both suites work on one network.
type handover struct {
	*e2etest.World
	backend   e2etest.Backend
	reference *netlab.Runtime
	ours      *netlab.Runtime
}

// eachHandover runs f for each kind of tables. Upstream's firewall knows
// iptables alone.
func eachHandover(t *testing.T, f func(t *testing.T, h *handover)) {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "bridge", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			if b.Name == "iptables-legacy" {
				preferLegacy(t)
			}
			h := &handover{World: e2etest.NewWorld(t), backend: b}
			h.SetBackend(b)
			kind, _, _ := strings.Cut(b.Name, "-")
			n := e2etest.Network{Extra: e2etest.Attributes{"ipMasqBackend": kind}, Portmap: e2etest.Attributes{"backend": kind}}
			if kind == "nftables" {
				n.Plugins = []string{"portmap"}
			}
			h.ours = h.Runtime(n)
			if h.reference, err = h.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.Conflist(t), Stderr: h.Stderr}); err != nil {
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

// Via is the pod as another runtime sees it.
func Via(p *e2etest.Pod, rt *netlab.Runtime) *e2etest.Pod {
	other := *p
	other.Runtime = rt
	return &other
}

func (h *handover) pod(rt *netlab.Runtime, name string) *e2etest.Pod {
	h.T.Helper()
	p := h.AddPod(rt, name, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.TCP(8443, 443))
	e2etest.Serve(h.T, p, name, ":80")
	for _, fam := range e2etest.Families() {
		if got := e2etest.Ask(h.T, h.Client(), "tcp", e2etest.At(fam.Node(h.Client()), 8080)); got.Server != name {
			h.T.Fatalf("%s: answered by %s, want %s", fam.Name, got.Server, name)
		}
	}
	marks := map[string]string{
		"nftables": "nft table ip cni_hostport", "iptables-nft": "nft table ip nat > chain CNI-DN-", "iptables-legacy": "iptables iptables-legacy-save -A CNI-DN-",
	}
	if len(e2etest.NetfilterRules(h.Snapshot()).Grep(marks[h.backend.Name])) == 0 {
		h.T.Fatalf("the ports are not in the tables of %s", h.backend.Name)
	}
	return p
}

func (h *handover) deleteNetns(p *e2etest.Pod) {
	h.T.Helper()
	if err := p.Delete(); err != nil {
		h.T.Fatal(err)
	}
}

func (h *handover) assertRulesUnchanged(before netlab.Snapshot, when string) {
	h.T.Helper()
	if d := netlab.Diff(e2etest.NetfilterRules(before), e2etest.NetfilterRules(h.Snapshot())); d != "" {
		h.T.Errorf("%s the rules differ (- gone, + left behind):\n%s", when, d)
	}
}

// What upstream made, our DEL removes; only its own shared chains stay, as
// after its own DEL.
func TestPrivilegedDelOfUpstream(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		before := h.NodeAfterPod(h.reference, e2etest.TCP(8080, 80))
		p := h.pod(h.reference, "a")
		Via(p, h.ours).MustDel()
		h.deleteNetns(p)
		h.assertRulesUnchanged(before, "after our DEL")
		if left := h.Snapshot().Grep("link veth"); len(left) > 0 {
			t.Errorf("after our DEL: %s", left)
		}

		p = h.pod(h.reference, "b") // the runtime has forgotten the ports
		p.Attachment.Capabilities = nil
		Via(p, h.ours).MustDel()
		h.deleteNetns(p)
		h.assertRulesUnchanged(before, "after our DEL without runtimeConfig")
	})
}

// Upstream's pods go on running when its programs have been replaced by ours, and are healthy to our CHECK.
func TestPrivilegedCheckOfUpstream(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		node := e2etest.Families()[0].Node(h.Client())
		p := h.AddPod(h.reference, "a", e2etest.TCP(8080, 80), e2etest.TCP(8081, 80).OnAddress(node), e2etest.UDP(8082, 80).OnAddress(node))
		e2etest.MustCheck(t, Via(p, h.ours))
		script := map[string]string{
			"nftables":        "nft flush chain ip cni_hostport hostports",
			"iptables-nft":    "iptables-nft -t nat -F CNI-HOSTPORT-DNAT",
			"iptables-legacy": "iptables-legacy -t nat -F CNI-HOSTPORT-DNAT",
		}
		e2etest.MustRun(t, h.Node, script[h.backend.Name])
		if err := Via(p, h.ours).Check(); err == nil {
			t.Error("CHECK does not see that nothing leads to the pod")
		}
		Via(p, h.ours).MustDel()
	})
}

// The same with a conflist that names no backend: upstream's pods are iptables', and our next ones eBPF's.
func TestPrivilegedHandoverToEBPF(t *testing.T) {
	dir, err := testbin.Reference(t.Context(), "bridge", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	w := e2etest.NewWorld(t)
	ours := w.Runtime(e2etest.Net0())
	reference, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: e2etest.Net0().Conflist(t), Stderr: w.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	before := w.NodeAfterPod(reference, e2etest.TCP(8080, 80))
	p := w.AddPod(reference, "a", e2etest.TCP(8080, 80), e2etest.TCP(8081, 80).OnAddress(e2etest.Families()[0].Node(w.Client())))
	e2etest.Serve(t, p, "a", ":80")
	e2etest.Serve(t, w.AddPod(ours, "b", e2etest.TCP(8090, 80)), "b", ":80")
	e2etest.MustCheck(t, Via(p, ours))
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for port, name := range map[uint16]string{8080: "a", 8090: "b"} {
			if got := e2etest.Ask(t, w.Client(), "tcp"+fam.Suffix, e2etest.At(fam.Node(w.Client()), port)); got.Server != name {
				t.Errorf("port %d: answered by %s, want %s", port, got.Server, name)
			}
		}
	})
	Via(p, ours).MustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	if d := netlab.Diff(e2etest.NetfilterRules(before), e2etest.NetfilterRules(w.Snapshot())); d != "" {
		t.Errorf("after our DEL the rules differ (- gone, + left behind):\n%s", d)
	}
}

// What we made, upstream's DEL removes, as far as it knows it: our records
// stay until our GC.
func TestPrivilegedUpstreamDelOfOurs(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		h.NodeAfterPod(h.ours, e2etest.TCP(8080, 80))
		before := h.NodeAfterPod(h.reference, e2etest.TCP(8080, 80))
		p := h.pod(h.ours, "a")
		Via(p, h.reference).MustDel()
		h.deleteNetns(p)
		h.assertRulesUnchanged(before, "after the reference's DEL")

		if err := h.ours.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		if left := h.Snapshot().Grep("/run/sluice/attachments/").Grep(".json"); len(left) > 0 {
			t.Errorf("after our GC: %s", left)
		}
		h.assertRulesUnchanged(before, "after our GC")
	})
}

// GC removes what upstream made and no record names, where the rules name
// the network: masquerading, and the ports of iptables.
func TestPrivilegedGCOfUpstream(t *testing.T) {
	eachHandover(t, func(t *testing.T, h *handover) {
		before := h.NodeAfterPod(h.reference, e2etest.TCP(8080, 80))
		p := h.pod(h.reference, "a")
		if err := h.reference.ForgetCache(p.Attachment); err != nil {
			t.Fatal(err)
		}
		h.deleteNetns(p)
		if err := h.ours.GC(context.Background(), nil); err != nil {
			t.Errorf("GC: %v", err)
		}
		left := slices.DeleteFunc(strings.Split(netlab.Diff(e2etest.NetfilterRules(before), e2etest.NetfilterRules(h.Snapshot())), "\n"), func(l string) bool {
			// A rule that holds nothing but an address or a container's name cannot be told from another network's.
			return l == "" || strings.Contains(l, "CNI-FORWARD") || strings.Contains(l, "table ip filter") || strings.Contains(l, "table ip6 filter") || strings.Contains(l, "table ip cni_hostport") || strings.Contains(l, "table ip6 cni_hostport")
		})
		if len(left) > 0 {
			t.Errorf("after our GC:\n%s", strings.Join(left, "\n"))
		}
	})
}

// A pod that one backend of ours attached is removed when the node uses another
// by then, with its record and without.
func TestPrivilegedDelAcrossBackends(t *testing.T) {
	all := append([]e2etest.Backend{{Name: "ebpf", Conf: `{}`}}, e2etest.NetfilterBackends()...)
	for i, from := range all {
		to := all[(i+1)%len(all)]
		t.Run(from.Name+" to "+to.Name, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			rt := w.Runtime(e2etest.Net0())
			for _, b := range []e2etest.Backend{from, to, from} { // what stays by design, also of one in the chains of the other
				w.SetBackend(b)
				w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
			}
			w.SetBackend(from)
			before := w.SyncedSnapshot()
			for _, lost := range []bool{false, true} {
				w.SetBackend(from)
				p := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.UDP(53, 53))
				if lost {
					e2etest.MustRun(t, w.Node, "rm -r /run/sluice/attachments")
				}
				w.SetBackend(to)
				p.MustDel()
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				w.SetBackend(from)
				left := func() netlab.Snapshot { return w.SyncedSnapshot().Without("file /run/sluice/attachments") }
				if d := netlab.DiffSoon(before.Without("file /run/sluice/attachments"), left); d != "" {
					t.Errorf("record lost: %v: the node differs (- gone, + left behind):\n%s", lost, d)
				}
			}
		})
	}
}
