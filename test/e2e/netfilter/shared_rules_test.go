// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// An ADD whose rules are refused leaves none of them.
func TestPrivilegedNetfilterFailedAdd(t *testing.T) {
	t.Parallel()
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			before := w.NodeAfterPod(w.Runtime(e2etest.Net0()), e2etest.TCP(8080, 80))
			tests := map[string]e2etest.Attributes{
				"IPv4 conditions that are none": {"conditionsV4": []string{"-m", "nonsense"}},
				"IPv6 conditions that are none": {"conditionsV6": []string{"-m", "nonsense"}},
				"a chain that does not exist":   {"externalSetMarkChain": "NOWHERE"},
			}
			if b.Name == "nftables" {
				tests = map[string]e2etest.Attributes{
					"IPv4 conditions that are none": {"conditionsV4": []string{"tcp", "nonsense"}},
					"IPv6 conditions that are none": {"conditionsV6": []string{"tcp", "nonsense"}},
				}
			}
			for name, keys := range tests {
				n := e2etest.Network{NoMasq: true, Plugins: []string{"portmap"}, Portmap: keys}
				p := w.NewPod(w.Runtime(n), "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				if err := p.TryAdd(); err == nil {
					t.Errorf("%s: ADD succeeded", name)
				}
				if left := netlab.Diff(e2etest.NetfilterRules(before), e2etest.NetfilterRules(w.Snapshot())); left != "" {
					t.Errorf("%s: a failed ADD left (- gone, + left behind):\n%s", name, left)
				}
				p.MustDel() // as a runtime does, for the plugins before it
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				w.AssertUnchanged(before, name+": after DEL")
			}
		})
	}
}

// CHECK misses what all pods share, and the next ADD of any pod repairs it.
func TestPrivilegedNetfilterCheckOfShared(t *testing.T) {
	t.Parallel()
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			rt := w.Runtime(e2etest.Net0())
			p := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
			ipt := b.Name + " -t nat "
			breaks := []string{
				ipt + "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-D OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-F CNI-HOSTPORT-SETMARK", ipt + "-F CNI-HOSTPORT-MASQ", ipt + "-F CNI-HOSTPORT-DNAT",
				"ip6" + strings.TrimPrefix(ipt, "ip") + "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-F POSTROUTING",
			}
			if b.Name == "nftables" {
				breaks = []string{
					"nft flush chain ip cni_hostport prerouting", "nft flush chain ip cni_hostport output", "nft flush chain ip6 cni_hostport hostports_all",
					"nft flush chain ip6 cni_hostport hostports", "nft flush chain inet cni_plugins_masquerade masq_checks", "nft flush chain inet cni_plugins_masquerade postrouting",
					"nft flush chain inet sluice_firewall forward",
				}
			}
			for _, line := range breaks {
				if err := p.Check(); err != nil {
					t.Fatalf("CHECK before %q: %v", line, err)
				}
				e2etest.MustRun(t, w.Node, line)
				before := e2etest.NetfilterRules(w.Snapshot())
				if err := p.Check(); err == nil {
					t.Errorf("CHECK does not see %q", line)
				}
				if d := netlab.Diff(before, e2etest.NetfilterRules(w.Snapshot())); d != "" {
					t.Errorf("CHECK after %q changed:\n%s", line, d)
				}
				p.MustDel() // what was the pod's own is not another's to repair
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				p = w.AddPod(rt, "a", e2etest.TCP(8080, 80))
			}
		})
	}
}

// Names as long as runtimes make them, which no comment holds whole.
func TestPrivilegedLongNames(t *testing.T) {
	t.Parallel()
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{}`}}, e2etest.NetfilterBackends()...) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			one, other := e2etest.Net0(), e2etest.Net1()
			one.Name, other.Name = strings.Repeat("n", 180), strings.Repeat("n", 179)+"m"
			rt, beside := w.Runtime(one), w.Runtime(other)
			w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
			w.NodeAfterPod(beside, e2etest.TCP(8080, 80))
			before := w.SyncedSnapshot()
			attach := func(rt *netlab.Runtime, id string, port int) *e2etest.Pod {
				p := w.NewPod(rt, id[60:], e2etest.TCP(port, 80))
				p.Attachment.ContainerID = id
				p.MustAdd()
				e2etest.Serve(t, p, id[60:], ":80")
				return p
			}
			a := attach(rt, strings.Repeat("0123456789abcdef", 3)+"0123456789abaaaa", 8080)
			c := attach(rt, strings.Repeat("0123456789abcdef", 3)+"0123456789abcccc", 8081)
			d := attach(beside, strings.Repeat("0123456789abcdef", 3)+"0123456789abdddd", 8082)
			c.MustDel()
			if err := rt.ForgetCache(a.Attachment); err != nil {
				t.Fatal(err)
			}
			if err := rt.GC(context.Background(), nil); err != nil {
				t.Errorf("GC: %v", err)
			}
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8082)); got.Server != "dddd" {
					t.Errorf("after GC of the other network: %s", got.Server)
				}
				e2etest.AssertNoAnswer(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080))
			})
			if err := d.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			d.MustDel()
			for _, p := range []*e2etest.Pod{a, c, d} {
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			w.AssertNothingLeft(before)
		})
	}
}
