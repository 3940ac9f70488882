// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Where a third party's chain of nftables drops, eBPF needs one rule of the
// administrator's: the log and the doctor have the command, and it is enough. The
// log says it now and then, not for each pod.
func TestPrivilegedForwardDropIsSaid(t *testing.T) {
	t.Parallel()
	const (
		drop    = "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'"
		command = "nft insert rule inet mine gate meta mark and 0x1000 == 0x1000 accept"
	)
	w := e2etest.NewWorld(t)
	e2etest.RunScript(t, w, drop)
	rt := w.Runtime(e2etest.Net0())
	if err := rt.Status(context.Background()); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if n := strings.Count(w.Stderr.String(), command); n != 1 {
		t.Errorf("STATUS says %q %d times:\n%s", command, n, w.Stderr)
	}
	p := w.AddPod(rt, "a")
	if n := strings.Count(w.Stderr.String(), command); n != 1 {
		t.Errorf("said %d times after ADD", n)
	}
	e2etest.Serve(t, w.Client(), "client", ":9000")
	said := doctor(t, w)
	if !strings.Contains(said, command) {
		t.Errorf("the doctor does not say %q:\n%s", command, said)
	}
	assertGetsOut(t, w, p, false)
	e2etest.RunScript(t, w, command)
	assertGetsOut(t, w, p, true)
	if said := doctor(t, w); strings.Contains(said, "forward-policy") {
		t.Errorf("the doctor is not content:\n%s", said)
	}
}

// assertGetsOut asks the client from the pod, which is masqueraded.
func assertGetsOut(t *testing.T, w *e2etest.World, p *e2etest.Pod, want bool) {
	t.Helper()
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			if to := e2etest.At(fam.Client(w.Client()), 9000); !want {
				e2etest.AssertNoAnswer(t, p, proto, to)
			} else if got := e2etest.Ask(t, p, proto, to); got.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("%s %s: the client saw %s", fam.Name, proto, got.Peer)
			}
		}
	}
}

// Where FORWARD of iptables drops, the ADD lets pass what the plugin admits, and
// nothing else: neither pods without the plugin nor what the administrator drops.
// The rules come back after a flush.
func TestPrivilegedForwardDropAdmits(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			both := func(do string) string {
				return "for f in " + tool + " ip6" + strings.TrimPrefix(tool, "ip") + "; do " + do + "; done"
			}
			w := e2etest.NewWorld(t)
			e2etest.RunScript(t, w, both("$f -P FORWARD DROP; $f -A FORWARD -p tcp --dport 9001 -j DROP"))
			rt := w.Runtime(e2etest.Net0())
			p := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, p, "a", ":80")
			without := e2etest.Net1()
			without.Plugins = []string{"portmap"}
			q := w.AddPod(w.Runtime(without), "b")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			e2etest.Serve(t, w.Client(), "client", ":9001")
			assertGetsOut(t, w, p, true)
			assertGetsOut(t, w, q, false)
			ptp := e2etest.Network{Name: "ptp0", Main: "ptp", Subnets: []string{"10.8.0.0/16", "fd00:10:8::/64"}}
			assertGetsOut(t, w, w.AddPod(w.Runtime(ptp), "d"), true)
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				// As upstream: the plugin opens nothing to the outside.
				e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
				if proto == "tcp" { // the administrator's rule
					e2etest.AssertNoAnswer(t, p, proto, e2etest.At(fam.Client(w.Client()), 9001))
				}
			})
			if said := doctor(t, w); strings.Contains(said, "forward-policy") {
				t.Errorf("the doctor is not content:\n%s", said)
			}
			if strings.Contains(w.Stderr.String(), "to let those pass") {
				t.Errorf("the log asks for a rule:\n%s", w.Stderr)
			}

			rules := func() (out string) {
				_ = w.Node.Do(func() (err error) {
					out, err = netlab.Run("sh", "-ec", both("$f-save | grep sluice"))
					return err
				})
				return out
			}
			once := rules()
			e2etest.RunScript(t, w, "touch -d -2min /run/sluice/forward-look:*")
			w.AddPod(rt, "c")
			if again := rules(); once == "" || again != once {
				t.Errorf("another ADD changes the rules:\n%s\nbefore:\n%s", again, once)
			}

			e2etest.RunScript(t, w, both("$f -F FORWARD; $f -t mangle -F FORWARD"))
			assertGetsOut(t, w, p, false)
			e2etest.RunScript(t, w, "touch -d -2min /run/sluice/forward-look:*")
			if err := rt.Status(context.Background()); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			assertGetsOut(t, w, p, true)
		})
	}
}

// doctor is what "sluice doctor" prints; its exit status says how bad it is.
func doctor(t testing.TB, w *e2etest.World) (out string) {
	t.Helper()
	_ = w.Node.Do(func() error {
		var err error
		if out, err = netlab.Run("sh", "-c", e2etest.Programs.Path("sluice")+" doctor; [ $? -ne 1 ]"); err != nil {
			t.Fatal(errors.Join(err, errors.New(out)))
		}
		return nil
	})
	return out
}

// A third party may masquerade the pods: kube-proxy, ip-masq-agent, an administrator. Answers then come to an address of the
// node, where no program can mark them. They pass in the chains of iptables without
// a rule of the administrator. An answer to a pod without the plugin does not.
func TestPrivilegedForwardDropOtherMasquerade(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"ebpf", "nftables"} {
		for _, tool := range []string{"iptables-nft", "iptables-legacy", "nftables"} {
			t.Run(backend+" and "+tool, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Configure(`{"backend":"` + backend + `"}`)
				script := "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'; " +
					"nft 'add table inet masq; add chain inet masq post { type nat hook postrouting priority 100; }; add rule inet masq post oifname eth0 masquerade'"
				if tool != "nftables" {
					script = "for f in " + tool + " ip6" + strings.TrimPrefix(tool, "ip") + "; do $f -P FORWARD DROP; $f -t nat -A POSTROUTING -o eth0 -j MASQUERADE; done"
				}
				e2etest.RunScript(t, w, script)
				p := w.AddPod(w.Runtime(e2etest.Network{NoMasq: true}), "a")
				e2etest.Serve(t, w.Client(), "client", ":9000")
				commands := adviceOf(doctor(t, w))
				if tool == "nftables" {
					if len(commands) != 1 || strings.Contains(commands[0], "established") {
						t.Errorf("the doctor says %q, want one rule about the mark", commands)
					}
					for _, c := range commands {
						e2etest.RunScript(t, w, c)
					}
				} else if len(commands) != 0 {
					t.Errorf("the doctor says %q", commands)
				}
				assertGetsOut(t, w, p, true)
				if backend == "ebpf" && tool != "nftables" {
					q := w.AddPod(w.Runtime(e2etest.Network{Name: "plain", Bridge: "cni7", Subnets: []string{"10.7.0.0/16", "fd00:10:7::/64"}, NoMasq: true, Plugins: []string{"portmap"}}), "q")
					assertGetsOut(t, w, q, false)
				}
				if said := doctor(t, w); strings.Contains(said, "forward-policy") {
					t.Errorf("the doctor is not content:\n%s", said)
				}
			})
		}
	}
}

// adviceOf returns the commands of the doctor's lines about the FORWARD policy.
func adviceOf(said string) (commands []string) {
	for l := range strings.Lines(said) {
		if _, do, found := strings.Cut(l, " -> "); found && strings.Contains(l, "forward-policy") {
			commands = append(commands, strings.TrimSpace(do))
		}
	}
	return commands
}
