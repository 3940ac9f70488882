// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// variants are the programs of iptables, IPv4 first.
func variants() map[string][]string {
	return map[string][]string{
		"nft":    {"iptables-nft", "ip6tables-nft"},
		"legacy": {"iptables-legacy", "ip6tables-legacy"},
	}
}

// A chain that iptablesAdminChainName names is obeyed where eBPF admits the pods: before and after it has rules, for what the pod
// opens, for its hostPort and for connections that run. That is how Nomad isolates its networks.
func TestPrivilegedNamedAdminChain(t *testing.T) {
	for variant, programs := range variants() {
		for _, made := range []string{"by the administrator", "by the plugin"} {
			t.Run(variant+" "+made, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Configure(`{"backend":"auto","relearnSeconds":1,"iptablesVariant":"` + variant + `"}`)
				each := func(rule string) {
					t.Helper()
					for _, program := range programs {
						e2etest.MustRun(t, w.Node, program+" "+rule)
					}
				}
				if made == "by the administrator" {
					each("-N NOMAD-ADMIN")
					each("-A NOMAD-ADMIN -p tcp --dport 7001 -j REJECT --reject-with tcp-reset")
				}
				n := e2etest.Net0()
				n.Firewall = e2etest.Attributes{"iptablesAdminChainName": "NOMAD-ADMIN"}
				rt := w.Runtime(n)
				p := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
				if made == "by the plugin" {
					each("-A NOMAD-ADMIN -p tcp --dport 7001 -j REJECT --reject-with tcp-reset")
				}
				e2etest.AssertChecked(t, p)
				e2etest.Serve(t, w.Client(), "client", ":7000")
				e2etest.Serve(t, w.Client(), "client", ":7001")
				e2etest.Serve(t, p, "a", ":80")
				e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
					c := w.Client()
					e2etest.AssertRefused(t, p, "tcp", e2etest.At(fam.Client(c), 7001))
					for _, running := range []struct {
						from e2etest.Place
						to   string
						rule string
					}{
						{p, e2etest.At(fam.Client(c), 7000), "-p tcp --dport 7000"},
						{c, e2etest.At(fam.Node(c), 8080), "-p tcp --dport 80"},
					} {
						talk, err := e2etest.Dial(running.from, "tcp", "", running.to)
						if err != nil {
							t.Fatal(err)
						}
						defer talk.Close()
						if err := talk.SendRounds(e2etest.LongTalk); err != nil { // on the fast path
							t.Fatal(err)
						}
						each("-I NOMAD-ADMIN " + running.rule + " -j REJECT --reject-with tcp-reset")
						e2etest.Eventually(t, 5*time.Second, func() error {
							if talk.Send("still") == nil {
								return os.ErrDeadlineExceeded
							}
							return nil
						})
						e2etest.AssertRefused(t, running.from, "tcp", running.to)
						each("-D NOMAD-ADMIN " + running.rule + " -j REJECT --reject-with tcp-reset")
					}
				})
				each("-F CNI-FORWARD")
				if err := p.Check(); err == nil || !strings.Contains(err.Error(), "NOMAD-ADMIN") {
					t.Errorf("CHECK where nothing calls the chain: %v", err)
				}
				w.AddPod(rt, "b").MustDel()
				e2etest.AssertChecked(t, p)
				p.MustDel()
			})
		}
	}
}

// CNI-ADMIN needs no key: upstream calls it too. A node where an administrator has put rules into it keeps them.
func TestPrivilegedDefaultAdminChain(t *testing.T) {
	for variant, programs := range variants() {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			for _, program := range programs {
				e2etest.MustRun(t, w.Node, program+" -N CNI-ADMIN")
				e2etest.MustRun(t, w.Node, program+" -A CNI-ADMIN -p tcp --dport 7001 -j REJECT --reject-with tcp-reset")
			}
			p := w.AddPod(w.Runtime(e2etest.Net0()), "a")
			e2etest.Serve(t, w.Client(), "client", ":7001")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				e2etest.AssertRefused(t, p, "tcp", e2etest.At(fam.Client(w.Client()), 7001))
			})
		})
	}
}

// Where nothing can call the chain that is named, ADD and STATUS say so, and no pod is open.
func TestPrivilegedAdminChainWithoutIPTables(t *testing.T) {
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Firewall = e2etest.Attributes{"iptablesAdminChainName": "NOMAD-ADMIN"}
	rt := w.Runtime(n)
	for _, path := range strings.Split(os.Getenv("PATH"), ":") {
		for _, programs := range variants() {
			for _, program := range append(programs, "iptables", "ip6tables") {
				for _, verb := range []string{"", "-save", "-restore"} {
					file := path + "/" + program + verb
					if _, err := os.Stat(file); err == nil {
						e2etest.MustRun(t, w.Node, "mount --bind /dev/null "+file)
					}
				}
			}
		}
	}
	var e *types.Error
	if err := w.NewPod(rt, "a").TryAdd(); !errors.As(err, &e) || e.Code != cnierr.CodeNoDatapath || !strings.Contains(e.Msg, `iptablesAdminChainName "NOMAD-ADMIN"`) {
		t.Errorf("ADD: %v", err)
	}
	if err := rt.Status(t.Context()); !errors.As(err, &e) || e.Code != cnierr.CodeUnavailable {
		t.Errorf("STATUS: %v", err)
	}
}

// firewalld admits pods by their addresses, and knows no chain of iptables. One that is named holds there too.
func TestPrivilegedFirewalldAdminChain(t *testing.T) {
	w := e2etest.NewWorld(t)
	w.Firewalld()
	n := e2etest.Net0()
	n.Firewall = e2etest.Attributes{"backend": "firewalld", "iptablesAdminChainName": "NOMAD-ADMIN"}
	before := w.NodeAfterPod(w.Runtime(n))
	p := w.AddPod(w.Runtime(n), "a")
	e2etest.Serve(t, w.Client(), "client", ":7001")
	for _, program := range []string{"iptables", "ip6tables"} {
		e2etest.MustRun(t, w.Node, program+" -A NOMAD-ADMIN -p tcp --dport 7001 -j REJECT --reject-with tcp-reset")
	}
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		e2etest.AssertRefused(t, p, "tcp", e2etest.At(fam.Client(w.Client()), 7001))
	})
	e2etest.AssertChecked(t, p)
	for _, program := range []string{"iptables", "ip6tables"} {
		e2etest.MustRun(t, w.Node, program+" -F NOMAD-ADMIN")
	}
	p.MustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	w.AssertUnchanged(before, "after DEL")
}

// A zone that is named chooses firewalld where it runs, as upstream does. eBPF has no zones.
func TestPrivilegedZoneChoosesFirewalld(t *testing.T) {
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Firewall = e2etest.Attributes{"firewalldZone": "home"}
	w.AddPod(w.Runtime(n), "without").MustDel() // a node without firewalld: eBPF
	w.Firewalld()
	p := w.AddPod(w.Runtime(n), "a")
	if got := e2etest.MustRun(t, w.Node, "firewall-cmd --zone=home --list-sources"); !strings.Contains(got, p.IP4.String()+"/32") || !strings.Contains(got, p.IP6.String()+"/128") {
		t.Errorf("the zone has %q", got)
	}
	e2etest.AssertChecked(t, p)
	p.MustDel()
}
