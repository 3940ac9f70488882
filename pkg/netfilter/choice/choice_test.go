// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func newTestNode(t *testing.T, f *tooltest.Tools, k tooltest.Kernel) *Node {
	return &Node{env: tooltest.Env(t, f, k), byDefault: "auto"}
}

// A DEL on a node that has nothing of it starts no process and takes no lock.
func TestNothingToDo(t *testing.T) {
	f := tooltest.NewTools()
	n := newTestNode(t, f, tooltest.Kernel{})
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	for _, tables := range n.All() {
		if err := errors.Join(
			tables.DelPorts(t.Context(), netfilter.Held{Ref: ref}),
			tables.DelMasq(t.Context(), ref, nil, nil),
			tables.DelFirewall(t.Context(), netfilter.Withdrawal{Ref: ref, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}),
			tables.SweepPorts(t.Context(), "n", func(string) bool { return false }),
			tables.SweepMasq(t.Context(), "n", nil),
		); err != nil {
			t.Errorf("%s: %v", tables.Name(), err)
		}
	}
	if len(f.Runs) > 0 {
		t.Errorf("ran %q", f.Runs)
	}
	if locks, _ := filepath.Glob(n.env.RunDir + "/*"); len(locks) > 0 {
		t.Errorf("made %q", locks)
	}
}

func TestPrefer(t *testing.T) {
	tests := []struct {
		name string
		use  use
		want string
		fact bool
	}{
		{"nothing", use{}, "", false},
		{"nft", use{Usage: netfilter.Usage{NFT: 3, Native: 9}}, netfilter.NameIPTablesNFT, true},
		{"legacy", use{Usage: netfilter.Usage{Legacy: 3, NFT: 2}}, netfilter.NameIPTablesLegacy, true},
		{"native", use{Usage: netfilter.Usage{Native: 1}}, netfilter.NameNFTables, true},
		{"hint", use{Usage: netfilter.Usage{NFT: 9}, hint: iptables.VariantLegacy}, netfilter.NameIPTablesLegacy, true},
	}
	for _, tt := range tests {
		if name, _, fact := tt.use.prefer(); name != tt.want || fact != tt.fact {
			t.Errorf("%s: %q %v", tt.name, name, fact)
		}
	}
}

// What a configuration names is what is taken, and the error says what is
// missing.
func TestSelectByName(t *testing.T) {
	tests := []struct {
		name, variant, ask, missing, want string
	}{
		{"nftables", "", "nftables", "", netfilter.NameNFTables},
		{"variant", "legacy", "iptables", "", netfilter.NameIPTablesLegacy},
		{"recorded name", "", "iptables-nft", "", netfilter.NameIPTablesNFT},
		{"no nft", "", "nftables", "nft", ""},
		{"unknown", "", "ipfw", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tooltest.NewTools()
			delete(f.Installed, tt.missing)
			n := newTestNode(t, f, tooltest.Kernel{})
			n.variant = tt.variant
			tables, c, err := n.Select(t.Context(), tt.ask)
			switch {
			case tt.want == "" && !errors.Is(err, netfilter.ErrUnusable):
				t.Errorf("error %v, want %v", err, netfilter.ErrUnusable)
			case tt.want != "" && (err != nil || tables.Name() != tt.want || c.Name != tt.want):
				t.Errorf("%v, %v, want %s", c, err, tt.want)
			}
		})
	}
}

// A choice is kept for the boot and shown.
func TestDecisionIsKept(t *testing.T) {
	n := newTestNode(t, tooltest.NewTools(), tooltest.Kernel{})
	if c := n.kept("auto"); c.Name != "" {
		t.Errorf("something was kept: %v", c)
	}
	want := n.keep("auto", netfilter.Choice{Name: netfilter.NameNFTables, Reason: "because", Fact: true})
	got, err := Made(n.env.RunDir)
	if err != nil || got["auto"] != want || want.Decided.IsZero() {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	f := tooltest.NewTools()
	n.env.Runner = f
	if tables, c, err := n.Select(t.Context(), "auto"); err != nil || tables.Name() != netfilter.NameNFTables || c != want {
		t.Errorf("%v, %v", c, err)
	}
	if len(f.Runs) > 0 {
		t.Errorf("a choice that was kept runs %q", f.Runs)
	}
}

// A choice follows the configuration at once, and the node after a while; what
// CNI plugins wrote does not speak for it.
func TestChoiceFollows(t *testing.T) {
	const (
		ours   = ":CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-0123456789abcdef01234 - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n-A CNI-DN-0123456789abcdef01234 -p tcp -j DNAT\n"
		theirs = ":INPUT ACCEPT [0:0]\n-A INPUT -s 192.0.2.99/32 -j DROP\n"
	)
	old := time.Now().Add(-choiceAge - time.Second)
	inNFT := tooltest.Kernel{
		Chains: map[string]bool{"2 filter FORWARD": true, "10 filter FORWARD": true},
		NFT:    []rtnl.NFTChain{{Family: unix.NFPROTO_IPV4, Table: "filter", Name: "FORWARD", Use: 9}},
	}
	inLegacy := tooltest.Kernel{Legacy: []string{"filter"}}
	both := inNFT
	both.Legacy = []string{"filter"}
	native := tooltest.Kernel{NFT: []rtnl.NFTChain{{Family: unix.NFPROTO_INET, Table: "mine", Name: "in", Use: 3}}}
	own := tooltest.Kernel{NFT: []rtnl.NFTChain{
		{Family: unix.NFPROTO_IPV4, Table: "sluice_localnet", Name: "prerouting", Use: 3},
		{Family: unix.NFPROTO_BRIDGE, Table: "nat", Name: "PREROUTING", Use: 3},
	}}
	tests := []struct {
		name        string
		kept        netfilter.Choice
		kernel      tooltest.Kernel
		nft, legacy string // what the tools say
		variant     string
		want        string
	}{
		{"fresh", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Fact: true, Seen: time.Now()}, inLegacy, "", theirs, "", netfilter.NameIPTablesNFT},
		{"fresh, other configuration", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Fact: true, Seen: time.Now()}, inNFT, theirs, "", iptables.VariantLegacy, netfilter.NameIPTablesLegacy},
		{"configuration taken back", netfilter.Choice{Name: netfilter.NameIPTablesLegacy, Fact: true, Seen: time.Now(), Variant: iptables.VariantLegacy}, inNFT, theirs, "", "", netfilter.NameIPTablesNFT},
		{"old, still so", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Fact: true, Seen: old}, inNFT, theirs, "", "", netfilter.NameIPTablesNFT},
		{"old, moved to legacy", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Fact: true, Seen: old}, both, ours, theirs, "", netfilter.NameIPTablesLegacy},
		{"old, moved to nft", netfilter.Choice{Name: netfilter.NameIPTablesLegacy, Fact: true, Seen: old}, both, theirs, ours, "", netfilter.NameIPTablesNFT},
		{"old, only ours left", netfilter.Choice{Name: netfilter.NameIPTablesLegacy, Fact: true, Seen: old}, both, ours, ours, "", netfilter.NameIPTablesLegacy},
		{"old, a default, nftables by now", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Seen: old}, native, "", "", "", netfilter.NameNFTables},
		{"a default, nftables by now", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Seen: time.Now()}, native, "", "", "", netfilter.NameNFTables},
		{"a default, and our own rules", netfilter.Choice{Name: netfilter.NameIPTablesNFT, Seen: time.Now()}, inNFT, ours, "", "", netfilter.NameIPTablesNFT},
		{"nothing but our own tables", netfilter.Choice{}, own, "", "", "", netfilter.NameIPTablesNFT},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tooltest.NewTools()
			f.Answers["iptables-nft-save"], f.Answers["iptables-legacy-save"] = tt.nft, tt.legacy
			n := newTestNode(t, f, tt.kernel)
			n.variant = tt.variant
			if tt.kept.Name != "" {
				seen := tt.kept.Seen
				n.keep("auto", tt.kept)
				backdate(t, n, seen)
			}
			tables, c, err := n.Select(t.Context(), "auto")
			if err != nil || tables.Name() != tt.want || c.Name != tt.want {
				t.Fatalf("%+v, %v, want %s", c, err, tt.want)
			}
			if kept := n.kept("auto"); kept.Name != tt.want || !fresh(kept) && tt.kept.Fact {
				t.Errorf("kept is %+v", kept)
			}
		})
	}
}

// backdate sets when the node was last looked at.
func backdate(t *testing.T, n *Node, seen time.Time) {
	t.Helper()
	path, err := decisionFile(n.env.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDecisions(n.env.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	c := d.Choices["auto"]
	c.Seen = seen
	d.Choices["auto"] = c
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
