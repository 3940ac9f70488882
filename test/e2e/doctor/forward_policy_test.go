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

// Where the FORWARD policy is DROP, eBPF needs one rule of the administrator's:
// the log and the doctor have the command, and it is enough. The log says it now
// and then, not for each pod.
func TestPrivilegedForwardDropIsSaid(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, drop, command string
	}{
		{"iptables-nft", "iptables-nft -P FORWARD DROP", "iptables-nft -I FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT; iptables-nft -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{"iptables-legacy", "ip6tables-legacy -P FORWARD DROP", "ip6tables-legacy -I FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT; ip6tables-legacy -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{"nftables", "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'", "nft insert rule inet mine gate meta mark and 0x1000 == 0x1000 accept; nft insert rule inet mine gate ct state established,related accept"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			e2etest.RunScript(t, w, tt.drop)
			rt := w.Runtime(e2etest.Net0())
			if err := rt.Status(context.Background()); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			if n := strings.Count(w.Stderr.String(), tt.command); n != 1 {
				t.Errorf("STATUS says %q %d times:\n%s", tt.command, n, w.Stderr)
			}
			p := w.AddPod(rt, "a")
			if n := strings.Count(w.Stderr.String(), tt.command); n != 1 {
				t.Errorf("said %d times after ADD", n)
			}
			e2etest.Serve(t, w.Client(), "client", ":9000")
			said := doctor(t, w)
			if !strings.Contains(said, tt.command) {
				t.Errorf("the doctor does not say %q:\n%s", tt.command, said)
			}
			e2etest.RunScript(t, w, tt.command)
			for _, fam := range e2etest.Families() {
				if got := e2etest.Ask(t, p, "tcp", e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
					t.Errorf("%s: the client saw %s", fam.Name, got.Peer)
				}
			}
			if said := doctor(t, w); strings.Contains(said, "forward-policy") {
				t.Errorf("the doctor is not content:\n%s", said)
			}
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
// node, and have no mark in FORWARD. What the doctor says lets them pass too.
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
				for _, f := range adviceOf(doctor(t, w)) {
					e2etest.RunScript(t, w, f)
				}
				for _, fam := range e2etest.Families() {
					for _, proto := range []string{"tcp", "udp"} {
						if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
							t.Errorf("%s %s: the client saw %s", fam.Name, proto, got.Peer)
						}
					}
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
