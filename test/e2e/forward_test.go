// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

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
		{"iptables-nft", "iptables-nft -P FORWARD DROP", "iptables-nft -I FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT"},
		{"iptables-legacy", "ip6tables-legacy -P FORWARD DROP", "ip6tables-legacy -I FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT"},
		{"nftables", "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'", "nft insert rule inet mine gate meta mark and 0x1000 == 0x1000 accept"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			shell(t, w, tt.drop)
			rt := w.runtime(net0())
			if err := rt.Status(context.Background()); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			if n := strings.Count(w.stderr.String(), tt.command); n != 1 {
				t.Errorf("STATUS says %q %d times:\n%s", tt.command, n, w.stderr)
			}
			p := w.add(rt, "a")
			if n := strings.Count(w.stderr.String(), tt.command); n != 1 {
				t.Errorf("said %d times after ADD", n)
			}
			serve(t, w.Client(), "client", ":9000")
			said := doctor(t, w)
			if !strings.Contains(said, tt.command) {
				t.Errorf("the doctor does not say %q:\n%s", tt.command, said)
			}
			shell(t, w, tt.command)
			for _, fam := range families() {
				if got := ask(t, p, "tcp", at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.node(w.Client()) {
					t.Errorf("%s: the client saw %s", fam.name, got.peer)
				}
			}
			if said := doctor(t, w); strings.Contains(said, "forward-policy") {
				t.Errorf("the doctor is not content:\n%s", said)
			}
		})
	}
}

// shell runs a script on the node.
func shell(t testing.TB, w *world, script string) {
	t.Helper()
	if err := w.Node.Do(func() error {
		_, err := netlab.Run("sh", "-ec", script)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// doctor is what "sluice doctor" prints; its exit status says how bad it is.
func doctor(t testing.TB, w *world) (out string) {
	t.Helper()
	_ = w.Node.Do(func() error {
		var err error
		if out, err = netlab.Run("sh", "-c", programs.Path("sluice")+" doctor; [ $? -ne 1 ]"); err != nil {
			t.Fatal(errors.Join(err, errors.New(out)))
		}
		return nil
	})
	return out
}
