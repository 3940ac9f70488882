// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// ingressPolicy keeps networks, and with isolated pods, apart; what goes out
// still goes, and the last pod takes the isolation with it.
func TestPrivilegedNetfilterIngressPolicy(t *testing.T) {
	for _, policy := range []string{"same-bridge", "isolated"} {
		t.Run(policy, func(t *testing.T) {
			eachNetfilter(t, func(t *testing.T, w *world, _ backend) {
				n0, n1 := net0(), net1()
				n0.firewall, n1.firewall = attributes{"ingressPolicy": policy}, attributes{"ingressPolicy": policy}
				r0, r1 := w.runtime(n0), w.runtime(n1)
				w.after(r0)
				before := w.after(r1)
				a, b, other := w.add(r0, "a"), w.add(r0, "b"), w.add(r1, "other")
				for _, p := range []*pod{a, b, other} {
					serve(t, p, p.Name, ":80")
				}
				serve(t, w.Client(), "client", ":7000")
				eachFamily(t, func(t *testing.T, fam family) {
					if got := ask(t, a, "tcp", at(fam.client(w.Client()), 7000)); got.name != "client" {
						t.Errorf("outside: %s", got.name)
					}
					refused(t, a, "tcp", at(fam.pod(other), 80))
					refused(t, other, "tcp", at(fam.pod(a), 80))
					if policy == "isolated" {
						refused(t, a, "tcp", at(fam.pod(b), 80))
					} else if got := ask(t, a, "tcp", at(fam.pod(b), 80)); got.name != "b" {
						t.Errorf("same bridge: %s", got.name)
					}
				})
				for _, p := range []*pod{a, b, other} {
					if err := p.check(); err != nil {
						t.Errorf("CHECK %s: %v", p.Name, err)
					}
				}
				for _, p := range []*pod{a, other, b} {
					p.mustDel()
					if err := p.Delete(); err != nil {
						t.Fatal(err)
					}
				}
				w.same(before, "after DEL")
			})
		})
	}
}

// Pods get out where the FORWARD policy is DROP, after the administrator's own
// chain, and CHECK sees what is missing without making it.
func TestPrivilegedIPTablesFirewall(t *testing.T) {
	for _, b := range netfilterBackends()[1:] {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.use(b)
			for _, ip := range []string{"iptables", "ip6tables"} {
				sh(t, w.Node, ip+strings.TrimPrefix(b.name, "iptables")+" -P FORWARD DROP")
			}
			n := net0()
			n.firewall = attributes{"iptablesAdminChainName": "MINE"}
			rt := w.runtime(n)
			p := w.add(rt, "a")
			serve(t, w.Client(), "client", ":7000")
			out := func(want bool) {
				t.Helper()
				for _, fam := range families() {
					addr := at(fam.client(w.Client()), 7000)
					if want {
						ask(t, p, "tcp", addr)
					} else {
						refused(t, p, "tcp", addr)
					}
				}
			}
			out(true)
			for _, ip := range []string{"iptables", "ip6tables"} {
				sh(t, w.Node, ip+strings.TrimPrefix(b.name, "iptables")+" -A MINE -j DROP")
			}
			out(false)
			if err := p.check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			sh(t, w.Node, strings.TrimSpace(b.name)+" -F CNI-FORWARD")
			before := w.snapshot()
			if err := p.check(); err == nil {
				t.Error("CHECK does not see that the rules are gone")
			}
			w.same(before, "after CHECK")
			p.mustDel()
		})
	}
}

const dbusConf = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// firewalld runs firewalld and a system bus of its own in the node.
func (w *world) firewalld() {
	w.t.Helper()
	for program, debian := range map[string]string{"firewalld": "firewalld", "firewall-cmd": "firewalld", "dbus-daemon": "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			w.t.Fatalf("%v: install the package %s", err, debian)
		}
	}
	if err := w.Node.Do(func() error {
		if err := os.MkdirAll("/run/dbus", 0o755); err != nil {
			return err
		}
		return os.WriteFile("/run/dbus.conf", []byte(dbusConf), 0o644)
	}); err != nil {
		w.t.Fatal(err)
	}
	w.start("dbus-daemon", "--config-file=/run/dbus.conf", "--nofork", "--nopidfile")
	eventually(w.t, 10*time.Second, func() error {
		return w.Node.Do(func() error { _, err := os.Stat("/run/dbus/system_bus_socket"); return err })
	})
	w.start("firewalld", "--nofork", "--nopid", "--log-file=/run/firewalld.log")
	eventually(w.t, 30*time.Second, func() error {
		return w.Node.Do(func() error { _, err := netlab.Run("firewall-cmd", "--state"); return err })
	})
}

// firewalld is asked to admit pods, by name and by auto where eBPF cannot run.
func TestPrivilegedFirewalld(t *testing.T) {
	for _, how := range []string{"by name", "by auto"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			w.firewalld()
			n := net0()
			n.plugins = []string{"firewall"}
			if how == "by name" {
				n.firewall = attributes{"backend": "firewalld", "firewalldZone": "home"}
			} else {
				w.configure(`{"bpffs":"/run/nobpf"}`)
				if err := w.Node.Do(func() error { return os.WriteFile("/run/nobpf", nil, 0o600) }); err != nil {
					t.Fatal(err)
				}
			}
			zone := map[string]string{"by name": "home", "by auto": "trusted"}[how]
			sources := func() string { return sh(t, w.Node, "firewall-cmd --zone="+zone+" --list-sources") }
			p := w.add(w.runtime(n), "a")
			for _, want := range []string{p.IP4.String() + "/32", p.IP6.String() + "/128"} {
				if got := sources(); !strings.Contains(got, want) {
					t.Errorf("the zone %s has %q, not %s", zone, got, want)
				}
			}
			if err := p.check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			sh(t, w.Node, "firewall-cmd --zone="+zone+" --remove-source="+p.IP4.String()+"/32")
			if err := p.check(); err == nil {
				t.Error("CHECK believes that a source is there which is not")
			}
			for range 2 {
				p.mustDel()
			}
			if got := strings.TrimSpace(sources()); got != "" {
				t.Errorf("after DEL the zone %s has %q", zone, got)
			}
		})
	}
}
