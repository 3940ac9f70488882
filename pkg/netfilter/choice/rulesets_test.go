// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func TestForwards(t *testing.T) {
	const mark = 0x1000
	save := "*filter\n:FORWARD DROP [0:0]\n"
	accepting := save + "-A FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT\n"
	chains := `{"nftables":[{"chain":{"family":"inet","table":"fw","name":"fwd","hook":"forward","policy":"drop"}},
		{"chain":{"family":"ip","table":"filter","name":"FORWARD","hook":"forward","policy":"drop"}},
		{"chain":{"family":"inet","table":"fw","name":"in","hook":"input","policy":"drop"}}]}`
	f := tooltest.NewTools()
	f.Answers = map[string]string{"iptables-nft-save": save, "ip6tables-nft-save": accepting, "iptables-legacy-save": "*filter\n:FORWARD ACCEPT [0:0]\n", "nft": chains}
	n := newTestNode(t, f, tooltest.Kernel{
		Chains: map[string]bool{"2 filter FORWARD": true, "10 filter FORWARD": true}, Legacy: []string{"filter"},
	})
	got, err := n.Forwards(t.Context(), mark)
	if err != nil {
		t.Fatal(err)
	}
	want := []netfilter.ForwardChain{
		{Tool: netfilter.NameIPTablesNFT, V4: true, Chain: "FORWARD"},
		{Tool: netfilter.NameIPTablesNFT, V6: true, Chain: "FORWARD", Accepts: true},
		{Tool: netfilter.NameNFTables, V4: true, V6: true, Table: "inet fw", Chain: "fwd"},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if got, err := newTestNode(t, &tooltest.Tools{}, tooltest.Kernel{}).Forwards(t.Context(), mark); len(got) != 0 || err != nil {
		t.Errorf("a node without tools: %v, %v", got, err)
	}
}

// Whatever the tables, what a pod has is seen with its names and addresses, and
// removing that leaves another pod's untouched.
func TestPrivilegedRuleSets(t *testing.T) {
	for _, kind := range New(Options{}).All() {
		t.Run(kind.Name(), func(t *testing.T) {
			l := netlab.NewT(t)
			if err := l.Node.Do(func() error {
				n := New(Options{RunDir: t.TempDir(), AdmitMark: 0x1000})
				tables, _ := n.Named(kind.Name())
				add := func(id, ip, ip6 string) error {
					ref := attachments.ID{Network: "n", ContainerID: id, IfName: "eth0"}
					addrs := []netip.Prefix{netip.MustParsePrefix(ip + "/16"), netip.MustParsePrefix(ip6 + "/64")}
					return errors.Join(
						tables.AddPorts(t.Context(), netfilter.Ports{Ref: ref, SNAT: true, MarkBit: netfilter.DefaultMarkBit, Pod: addrs, Mappings: []netfilter.Mapping{
							tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 1000, ip, 80), tooltest.Mapping("::", unix.IPPROTO_UDP, 1000, ip6, 80),
						}}),
						tables.AddMasq(t.Context(), ref, addrs),
						tables.AddFirewall(t.Context(), netfilter.Firewall{Ref: ref, Addrs: addrs, Policy: netfilter.PolicyIsolated, Bridge: "br-" + id}),
						tables.EnableLocalnet(t.Context(), "lo"))
				}
				if err := add("keep", "10.1.0.2", "fd00::2"); err != nil {
					return err
				}
				before, err := l.Node.Snapshot()
				if err != nil {
					return err
				}
				if err := add("drop", "10.1.0.3", "fd00::3"); err != nil {
					return err
				}
				sets, err := n.RuleSets(t.Context())
				if err != nil {
					return err
				}
				dropped := about(sets, "drop", "10.1.0.3", "fd00::3", "br-drop")
				if len(dropped) < 6 || len(sets) < 2*len(dropped) {
					t.Errorf("%d sets of one of two pods, of %d: %+v", len(dropped), len(sets), sets)
				}
				if err := n.Remove(t.Context(), dropped); err != nil {
					return err
				}
				after, err := l.Node.Snapshot()
				if d := netlab.Diff(before, after); d != "" {
					t.Errorf("after the removal (- gone, + left behind):\n%s", d)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// about returns the sets that name the container, one of the addresses or the
// bridge.
func about(sets []netfilter.RuleSet, id, ip, ip6, bridge string) []netfilter.RuleSet {
	var out []netfilter.RuleSet
	for _, tr := range sets {
		mine := tr.ContainerID == id || tr.Device == bridge
		for _, a := range tr.Addrs {
			mine = mine || a == netip.MustParseAddr(ip) || a == netip.MustParseAddr(ip6)
		}
		if mine {
			out = append(out, tr)
		}
	}
	return out
}
