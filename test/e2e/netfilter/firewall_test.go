// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// ingressPolicy keeps networks, and with isolated pods, apart; what goes out
// still goes, and the last pod takes the isolation with it.
func TestPrivilegedNetfilterIngressPolicy(t *testing.T) {
	for _, policy := range []string{"same-bridge", "isolated"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			eachNetfilterBackend(t, func(t *testing.T, w *e2etest.World, _ e2etest.Backend) {
				n0, n1 := e2etest.Net0(), e2etest.Net1()
				n0.Firewall, n1.Firewall = e2etest.Attributes{"ingressPolicy": policy}, e2etest.Attributes{"ingressPolicy": policy}
				r0, r1 := w.Runtime(n0), w.Runtime(n1)
				w.NodeAfterPod(r0)
				before := w.NodeAfterPod(r1)
				a, b, other := w.AddPod(r0, "a"), w.AddPod(r0, "b"), w.AddPod(r1, "other")
				for _, p := range []*e2etest.Pod{a, b, other} {
					e2etest.Serve(t, p, p.Name, ":80")
				}
				e2etest.Serve(t, w.Client(), "client", ":7000")
				e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
					if got := e2etest.Ask(t, a, "tcp", e2etest.At(fam.Client(w.Client()), 7000)); got.Server != "client" {
						t.Errorf("outside: %s", got.Server)
					}
					closed := []func(){
						func() { e2etest.AssertNoAnswer(t, a, "tcp", e2etest.At(fam.Pod(other), 80)) },
						func() { e2etest.AssertNoAnswer(t, other, "tcp", e2etest.At(fam.Pod(a), 80)) },
					}
					if policy == "isolated" {
						closed = append(closed, func() { e2etest.AssertNoAnswer(t, a, "tcp", e2etest.At(fam.Pod(b), 80)) })
					}
					e2etest.AtOnce(closed...)
					if policy == "isolated" {
						return
					}
					if got := e2etest.Ask(t, a, "tcp", e2etest.At(fam.Pod(b), 80)); got.Server != "b" {
						t.Errorf("same bridge: %s", got.Server)
					}
				})
				for _, p := range []*e2etest.Pod{a, b, other} {
					if err := p.Check(); err != nil {
						t.Errorf("CHECK %s: %v", p.Name, err)
					}
				}
				for _, p := range []*e2etest.Pod{a, other, b} {
					p.MustDel()
					if err := p.Delete(); err != nil {
						t.Fatal(err)
					}
				}
				w.AssertUnchanged(before, "after DEL")
			})
		})
	}
}

// Pods get out where the FORWARD policy is DROP, after the administrator's own
// chain, and CHECK sees what is missing without making it.
func TestPrivilegedIPTablesFirewall(t *testing.T) {
	for _, b := range e2etest.NetfilterBackends()[1:] {
		t.Run(b.Name, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			for _, ip := range []string{"iptables", "ip6tables"} {
				e2etest.MustRun(t, w.Node, ip+strings.TrimPrefix(b.Name, "iptables")+" -P FORWARD DROP")
			}
			n := e2etest.Net0()
			n.Firewall = e2etest.Attributes{"iptablesAdminChainName": "MINE"}
			rt := w.Runtime(n)
			p := w.AddPod(rt, "a")
			e2etest.Serve(t, w.Client(), "client", ":7000")
			out := func(want bool) {
				t.Helper()
				for _, fam := range e2etest.Families() {
					addr := e2etest.At(fam.Client(w.Client()), 7000)
					if want {
						e2etest.Ask(t, p, "tcp", addr)
					} else {
						e2etest.AssertNoAnswer(t, p, "tcp", addr)
					}
				}
			}
			out(true)
			for _, ip := range []string{"iptables", "ip6tables"} {
				e2etest.MustRun(t, w.Node, ip+strings.TrimPrefix(b.Name, "iptables")+" -A MINE -j DROP")
			}
			out(false)
			if err := p.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			e2etest.MustRun(t, w.Node, strings.TrimSpace(b.Name)+" -F CNI-FORWARD")
			before := w.Snapshot()
			if err := p.Check(); err == nil {
				t.Error("CHECK does not see that the rules are gone")
			}
			w.AssertUnchanged(before, "after CHECK")
			p.MustDel()
		})
	}
}

// firewalld is asked to admit pods, by name and by auto where eBPF cannot run.
func TestPrivilegedFirewalld(t *testing.T) {
	for _, how := range []string{"by name", "by auto"} {
		t.Run(how, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			w.Firewalld()
			n := e2etest.Net0()
			n.Plugins = []string{"firewall"}
			if how == "by name" {
				n.Firewall = e2etest.Attributes{"backend": "firewalld", "firewalldZone": "home"}
			} else {
				w.Configure(`{"bpffs":"/run/nobpf"}`)
				if err := w.Node.Do(func() error { return os.WriteFile("/run/nobpf", nil, 0o600) }); err != nil {
					t.Fatal(err)
				}
			}
			zone := map[string]string{"by name": "home", "by auto": "trusted"}[how]
			sources := func() string { return e2etest.MustRun(t, w.Node, "firewall-cmd --zone="+zone+" --list-sources") }
			p := w.AddPod(w.Runtime(n), "a")
			for _, want := range []string{p.IP4.String() + "/32", p.IP6.String() + "/128"} {
				if got := sources(); !strings.Contains(got, want) {
					t.Errorf("the zone %s has %q, not %s", zone, got, want)
				}
			}
			if err := p.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			e2etest.MustRun(t, w.Node, "firewall-cmd --zone="+zone+" --remove-source="+p.IP4.String()+"/32")
			if err := p.Check(); err == nil {
				t.Error("CHECK believes that a source is there which is not")
			}
			for range 2 {
				p.MustDel()
			}
			if got := strings.TrimSpace(sources()); got != "" {
				t.Errorf("after DEL the zone %s has %q", zone, got)
			}
		})
	}
}
