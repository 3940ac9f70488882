// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// firewalldNode is a node whose uplink is in the zone public, with firewalld as it comes.
func firewalldNode(t *testing.T) *e2etest.World {
	t.Helper()
	w := e2etest.NewWorld(t)
	startFirewalld(t, w)
	return w
}

func startFirewalld(t *testing.T, w *e2etest.World) {
	t.Helper()
	e2etest.RunScript(t, w, "mount -t tmpfs tmpfs /etc/firewalld") // what is permanent goes with the node
	w.Firewalld()
	e2etest.RunScript(t, w, "for how in '' --permanent; do firewall-cmd -q $how --zone=public --add-interface=eth0; done")
}

// bothSuites are the directories of upstream's plugins and of ours.
func bothSuites(t *testing.T) map[string]string {
	t.Helper()
	upstream, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"upstream": upstream, "sluice": e2etest.Programs.Dir}
}

// firewalld admits what netfilter has translated, so a hostPort needs no open port. The lists are those of runtimes: without the firewall
// plugin, with it, and with the zone that has podman's and CRI-O's.
func TestPrivilegedFirewalldAdmitsHostPorts(t *testing.T) {
	t.Parallel()
	for suite, dir := range bothSuites(t) {
		for list, n := range map[string]e2etest.Network{
			"bridge, portmap":                         {Plugins: []string{"portmap"}},
			"ptp, portmap":                            {Main: "ptp", Plugins: []string{"portmap"}},
			"bridge, portmap, firewall":               {},
			"bridge, portmap, firewall, zone trusted": {Firewall: e2etest.Attributes{"firewalldZone": "trusted"}},
			"bridge, portmap, firewall by firewalld":  {Firewall: e2etest.Attributes{"backend": "firewalld"}},
		} {
			t.Run(suite+"/"+list, func(t *testing.T) {
				t.Parallel()
				w := firewalldNode(t)
				rt := w.RuntimeFrom(n, dir)
				web, other := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "other")
				e2etest.Serve(t, web, "web", ":80")
				e2etest.Serve(t, w.Client(), "client", ":9000")
				e2etest.AssertHostPort(t, w, "web")
				e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
					for _, from := range []e2etest.Place{w.Node, other} {
						if got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "web" {
							t.Errorf("from %v: answered by %s", from, got.Server)
						}
					}
					if got := e2etest.Ask(t, web, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
						t.Errorf("to the outside: the client saw %s", got.Peer)
					}
				})
				for _, p := range []*e2etest.Pod{web, other} {
					if err := p.Check(); err != nil {
						t.Errorf("CHECK: %v", err)
					}
				}
				if suite == "sluice" { // a reload flushes the rules of iptables, which upstream's plugins make
					e2etest.MustRun(t, w.Node, "firewall-cmd -q --reload")
					e2etest.AssertHostPort(t, w, "web")
				}
				web.MustDel()
				other.MustDel()
				if rules := e2etest.MustRun(t, w.Node, "nft list ruleset"); strings.Contains(rules, "dport 8080") {
					t.Errorf("after DEL:\n%s", rules)
				}
			})
		}
	}
}

// The firewall plugin lets pods out of their zone where firewalld keeps zones apart: with upstream's default, the zone trusted has their
// addresses. eBPF's admission means nothing to firewalld.
func TestPrivilegedFirewalldLetsPodsOut(t *testing.T) {
	t.Parallel()
	for suite, dir := range bothSuites(t) {
		for list, firewall := range map[string]e2etest.Attributes{
			"no key": nil, "backend auto": {"backend": "auto"}, "zone": {"firewalldZone": "trusted"}, "ingressPolicy": {"ingressPolicy": "same-bridge"},
		} {
			if suite == "upstream" && list == "backend auto" {
				continue // upstream knows no such word
			}
			t.Run(suite+"/"+list, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Firewalld()
				e2etest.MustRun(t, w.Node, "firewall-cmd -q --zone=dmz --add-interface=eth0") // pods' devices are in the default zone, public
				p := w.AddPod(w.RuntimeFrom(e2etest.Network{Firewall: firewall}, dir), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				e2etest.Serve(t, p, "web", ":80")
				e2etest.Serve(t, w.Client(), "client", ":9000")
				e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
					if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
						t.Errorf("the client saw %s", got.Peer)
					}
				})
				e2etest.AssertHostPort(t, w, "web")
				if err := p.Check(); err != nil {
					t.Errorf("CHECK: %v", err)
				}
				p.MustDel()
				if got := strings.TrimSpace(e2etest.MustRun(t, w.Node, "firewall-cmd --zone=trusted --list-sources")); got != "" {
					t.Errorf("after DEL the zone has %q", got)
				}
			})
		}
	}
}

// eBPF that is named stays, and so does eBPF for keys that only it has. firewalld rejects its ports until they are opened. The doctor says so.
func TestPrivilegedFirewalldWithNamedEBPF(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"network", "node", "keys"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := firewalldNode(t)
			n := e2etest.Net0()
			switch by {
			case "network":
				n.Portmap, n.Firewall = e2etest.Attributes{"backend": "ebpf"}, e2etest.Attributes{"backend": "ebpf"}
			case "node":
				w.Configure(`{"backend":"ebpf"}`)
			case "keys":
				n.Portmap = e2etest.Attributes{"allowedSources": []string{"192.0.2.0/24", "2001:db8:1::/64"}}
				n.Firewall = e2etest.Attributes{"rules": e2etest.Attributes{"egress": []e2etest.Attributes{{"action": "deny", "cidrs": []string{"198.51.100.0/24"}}}}}
			}
			p := w.AddPod(w.Runtime(n), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, p, "web", ":80")
			if got := e2etest.MustRun(t, w.Node, "firewall-cmd --zone=trusted --list-sources"); strings.TrimSpace(got) != "" {
				t.Errorf("the zone has %q", got)
			}
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				e2etest.AssertDenied(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
			})
			if out := doctor(t, w); !strings.Contains(out, "hostPorts of 1 attachment") {
				t.Errorf("the doctor does not name it:\n%s", out)
			}
			// As docs/known-gaps.md says.
			e2etest.RunScript(t, w, `firewall-cmd -q --permanent --new-policy hostports
				firewall-cmd -q --permanent --policy hostports --add-ingress-zone public
				firewall-cmd -q --permanent --policy hostports --add-egress-zone ANY
				firewall-cmd -q --permanent --policy hostports --add-port 80/tcp --add-port 80/udp
				firewall-cmd -q --reload`)
			e2etest.AssertHostPort(t, w, "web")
		})
	}
}

// firewalld that starts later than a pod shuts its ports. A pod that is deleted and added has them open.
func TestPrivilegedFirewalldStartsLater(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.AssertHostPort(t, w, "web")
	startFirewalld(t, w)
	e2etest.AssertDenied(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 8080))
	if err := p.Check(); err != nil {
		t.Errorf("CHECK of what the record names: %v", err)
	}
	if out := doctor(t, w); !strings.Contains(out, "hostPorts of 1 attachment") {
		t.Errorf("the doctor does not name it:\n%s", out)
	}
	p.MustDel()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	p = w.AddPod(rt, "again", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "again", ":80")
	e2etest.AssertHostPort(t, w, "again")
	if out := doctor(t, w); strings.Contains(out, "firewalld runs") {
		t.Errorf("the doctor still names it:\n%s", out)
	}
	p.MustDel()
}

// The question starts a process once a minute where firewalld is installed, and none where it is not, or without a system bus.
func TestPrivilegedCostOfFirewalld(t *testing.T) {
	t.Parallel()
	const calls = "/run/helper-calls"
	// dash gives the helper the file that the plugin opened for it.
	script := fmt.Sprintf("#!/bin/sh\nread -r in\necho \"$in\" >>%s\necho \"$in\" | %s.real\n", calls, "$0")
	for _, tt := range []struct {
		name    string
		plugins []string
		prepare func(w *e2etest.World)
		want    int
	}{
		{"no system bus", nil, func(*e2etest.World) {}, 0},
		{"not installed", nil, func(w *e2etest.World) {
			w.Firewalld()
			e2etest.RunScript(t, w, `for d in /usr/sbin /usr/bin; do
				[ -e $d/firewalld ] || continue
				mkdir -p /run/over$d /run/work$d
				mount -t overlay overlay -o lowerdir=$d,upperdir=/run/over$d,workdir=/run/work$d $d
				rm $d/firewalld
			done`)
		}, 0},
		{"running", []string{"portmap"}, func(w *e2etest.World) { w.Firewalld() }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			dir := t.TempDir()
			for _, name := range []string{"bridge", "portmap", "firewall", "host-local", install.Helper} {
				to := filepath.Join(dir, name)
				if name == install.Helper {
					to += ".real"
				}
				if err := e2etest.InstallFile(e2etest.Programs.Path(name), to); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, install.Helper), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			tt.prepare(w)
			rt := w.RuntimeFrom(e2etest.Network{Plugins: tt.plugins}, dir)
			for i := range 3 {
				w.AddPod(rt, fmt.Sprint("p", i), e2etest.TCP(8080+i, 80))
			}
			asked := func() int {
				return strings.Count(e2etest.MustRun(t, w.Node, "cat "+calls), `"job":"firewalld"`)
			}
			if n := asked(); n != tt.want {
				t.Errorf("three ADDs asked %d times, want %d", n, tt.want)
			}
			e2etest.RunScript(t, w, "for f in /run/sluice/firewalld-*; do [ ! -e $f ] || touch -d -2min $f; done")
			w.AddPod(rt, "late", e2etest.TCP(9000, 80)).MustDel()
			if n := asked(); n != 2*tt.want {
				t.Errorf("an ADD after a minute: asked %d times, want %d", n, 2*tt.want)
			}
		})
	}
}

// doctor is what "sluice doctor" prints. It ends with status 1 where something is wrong.
func doctor(t *testing.T, w *e2etest.World) string {
	t.Helper()
	var out string
	w.DoOnNode(func() (err error) {
		out, err = netlab.Run("sh", "-c", e2etest.Programs.Path("sluice")+" doctor; [ $? -ne 1 ]")
		return err
	})
	return out
}
