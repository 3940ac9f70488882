// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// An ADD whose rules are refused leaves none of them.
func TestPrivilegedNetfilterFailedAdd(t *testing.T) {
	t.Parallel()
	for _, b := range netfilterBackends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			before := w.after(w.runtime(net0()), tcp(8080, 80))
			tests := map[string]attributes{
				"IPv4 conditions that are none": {"conditionsV4": []string{"-m", "nonsense"}},
				"IPv6 conditions that are none": {"conditionsV6": []string{"-m", "nonsense"}},
				"a chain that does not exist":   {"externalSetMarkChain": "NOWHERE"},
			}
			if b.name == "nftables" {
				tests = map[string]attributes{
					"IPv4 conditions that are none": {"conditionsV4": []string{"tcp", "nonsense"}},
					"IPv6 conditions that are none": {"conditionsV6": []string{"tcp", "nonsense"}},
				}
			}
			for name, keys := range tests {
				n := network{noMasq: true, plugins: []string{"portmap"}, portmap: keys}
				p := w.newPod(w.runtime(n), "a", tcp(8080, 80), udp(8080, 80))
				if err := p.tryAdd(); err == nil {
					t.Errorf("%s: ADD succeeded", name)
				}
				if left := netlab.Diff(rules(before), rules(w.snapshot())); left != "" {
					t.Errorf("%s: a failed ADD left (- gone, + left behind):\n%s", name, left)
				}
				p.mustDel() // as a runtime does, for the plugins before it
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				w.same(before, name+": after DEL")
			}
		})
	}
}

// CHECK misses what all pods share, and the next ADD of any pod repairs it.
func TestPrivilegedNetfilterCheckOfShared(t *testing.T) {
	t.Parallel()
	for _, b := range netfilterBackends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			rt := w.runtime(net0())
			p := w.add(rt, "a", tcp(8080, 80))
			ipt := b.name + " -t nat "
			breaks := []string{
				ipt + "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-D OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-F CNI-HOSTPORT-SETMARK", ipt + "-F CNI-HOSTPORT-MASQ", ipt + "-F CNI-HOSTPORT-DNAT",
				"ip6" + strings.TrimPrefix(ipt, "ip") + "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
				ipt + "-F POSTROUTING",
			}
			if b.name == "nftables" {
				breaks = []string{
					"nft flush chain ip cni_hostport prerouting", "nft flush chain ip cni_hostport output", "nft flush chain ip6 cni_hostport hostports_all",
					"nft flush chain ip6 cni_hostport hostports", "nft flush chain inet cni_plugins_masquerade masq_checks", "nft flush chain inet cni_plugins_masquerade postrouting",
					"nft flush chain inet sluice_firewall forward",
				}
			}
			for _, line := range breaks {
				if err := p.check(); err != nil {
					t.Fatalf("CHECK before %q: %v", line, err)
				}
				sh(t, w.Node, line)
				before := rules(w.snapshot())
				if err := p.check(); err == nil {
					t.Errorf("CHECK does not see %q", line)
				}
				if d := netlab.Diff(before, rules(w.snapshot())); d != "" {
					t.Errorf("CHECK after %q changed:\n%s", line, d)
				}
				p.mustDel() // what was the pod's own is not another's to repair
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				p = w.add(rt, "a", tcp(8080, 80))
			}
		})
	}
}

// Names as long as runtimes make them, which no comment holds whole.
func TestPrivilegedLongNames(t *testing.T) {
	t.Parallel()
	for _, b := range append([]backend{{"ebpf", `{}`}}, netfilterBackends()...) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			one, other := net0(), net1()
			one.name, other.name = strings.Repeat("n", 180), strings.Repeat("n", 179)+"m"
			rt, beside := w.runtime(one), w.runtime(other)
			w.after(rt, tcp(8080, 80))
			w.after(beside, tcp(8080, 80))
			before := w.steady()
			attach := func(rt *netlab.Runtime, id string, port int) *pod {
				p := w.newPod(rt, id[60:], tcp(port, 80))
				p.att.ContainerID = id
				p.mustAdd()
				serve(t, p, id[60:], ":80")
				return p
			}
			a := attach(rt, strings.Repeat("0123456789abcdef", 3)+"0123456789abaaaa", 8080)
			c := attach(rt, strings.Repeat("0123456789abcdef", 3)+"0123456789abcccc", 8081)
			d := attach(beside, strings.Repeat("0123456789abcdef", 3)+"0123456789abdddd", 8082)
			c.mustDel()
			if err := rt.ForgetCache(a.att); err != nil {
				t.Fatal(err)
			}
			if err := rt.GC(context.Background(), nil); err != nil {
				t.Errorf("GC: %v", err)
			}
			eachFamily(t, func(t *testing.T, fam family) {
				if got := ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8082)); got.name != "dddd" {
					t.Errorf("after GC of the other network: %s", got.name)
				}
				refused(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080))
			})
			if err := d.check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			d.mustDel()
			for _, p := range []*pod{a, c, d} {
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			w.assertNothingLeft(before)
		})
	}
}
