// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// fakeTools is a node with some programs installed that answer as told.
type fakeTools struct {
	installed map[string]bool
	answers   map[string]string // by the program's name
	fail      map[string]error  // by the program's name, once each time it is asked
	runs      []string
}

func (f *fakeTools) LookPath(name string) (string, error) {
	if f.installed[name] {
		return name, nil
	}
	return "", exec.ErrNotFound
}

func (f *fakeTools) Run(_ context.Context, stdin, name string, args ...string) (string, error) {
	f.runs = append(f.runs, strings.TrimSpace(name+" "+strings.Join(args, " ")+"\n"+stdin))
	if err := f.fail[name]; err != nil {
		return "", err
	}
	return f.answers[name], nil
}

// fakeKernel has these chains ("ip nat CNI-X") and legacy tables.
type fakeKernel struct {
	chains map[string]bool
	legacy []string
	nft    []rtnl.NFTChain
}

func (k fakeKernel) HasNFTChain(family int, table, chain string) (bool, error) {
	return k.chains[fmt.Sprint(family, " ", table, " ", chain)], nil
}

func (k fakeKernel) NFTChains() ([]rtnl.NFTChain, error) { return k.nft, nil }

func (k fakeKernel) LegacyTables(bool) ([]string, error) { return k.legacy, nil }

func allTools() *fakeTools {
	f := &fakeTools{installed: map[string]bool{"nft": true}, answers: map[string]string{}, fail: map[string]error{}}
	for _, v := range []string{"-nft", "-legacy", ""} {
		for _, verb := range []string{"-save", "-restore"} {
			f.installed["iptables"+v+verb], f.installed["ip6tables"+v+verb] = true, true
		}
	}
	return f
}

func newTestNode(t *testing.T, f *fakeTools, k fakeKernel) *Node {
	return &Node{env: env{run: f, runDir: t.TempDir(), log: log.NewNop(), kernel: k}, byDefault: "auto"}
}

// A DEL on a node that has nothing of it starts no process and takes no lock.
func TestNothingToDo(t *testing.T) {
	f := allTools()
	n := newTestNode(t, f, fakeKernel{})
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	for _, tables := range n.All() {
		if err := errors.Join(
			tables.DelPorts(t.Context(), Held{Ref: ref}),
			tables.DelMasq(t.Context(), ref, nil, nil),
			tables.DelFirewall(t.Context(), Withdrawal{Ref: ref, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}),
			tables.SweepPorts(t.Context(), "n", func(string) bool { return false }),
			tables.SweepMasq(t.Context(), "n", nil),
		); err != nil {
			t.Errorf("%s: %v", tables.Name(), err)
		}
	}
	if len(f.runs) > 0 {
		t.Errorf("ran %q", f.runs)
	}
	if locks, _ := filepath.Glob(n.runDir + "/*"); len(locks) > 0 {
		t.Errorf("made %q", locks)
	}
}

// A rule that is refused is not tried again; one that met somebody else's change
// is.
func TestEditTriesAgain(t *testing.T) {
	refused := &toolError{"iptables-nft-restore", 1, "line 2 failed"}
	byKernel := &toolError{"iptables-nft-restore", statusBusy, "line 3: RULE_APPEND failed (Too many links): rule in chain A"}
	tests := []struct {
		name     string
		err      error
		changing bool
		want     error
		restores int
	}{
		{"fine", nil, false, nil, 1},
		{"refused", refused, false, refused, 1},
		{"changed", refused, true, ErrBusy, attempts},
		{"refused by the kernel", byKernel, false, byKernel, 1},
		{"refused by the kernel, changed", byKernel, true, ErrBusy, attempts},
		{"locked", &toolError{"iptables-legacy-restore", statusBusy, "xtables lock"}, false, ErrBusy, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := allTools()
			f.fail["iptables-nft-restore"] = tt.err
			n := newTestNode(t, f, fakeKernel{})
			tables := &IPTables{n.env, VariantNFT}
			reads := 0
			tables.run = changing{f, func() {
				if reads++; tt.changing {
					f.answers["iptables-nft-save"] = fmt.Sprintf(":C%d - [0:0]\n", reads)
				}
			}}
			err := tables.AddMasq(t.Context(), attachments.ID{Network: "n", ContainerID: "c"}, []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")})
			if !errors.Is(err, tt.want) || errors.Is(err, ErrBusy) && !errors.Is(tt.want, ErrBusy) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			restores := 0
			for _, r := range f.runs {
				if strings.HasPrefix(r, "iptables-nft-restore --noflush --wait 5") {
					restores++
				}
			}
			if restores != tt.restores {
				t.Errorf("%d restores, want %d", restores, tt.restores)
			}
		})
	}
}

// changing calls before before every save.
type changing struct {
	*fakeTools
	before func()
}

func (c changing) Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	if strings.HasSuffix(name, "-save") {
		c.before()
	}
	return c.fakeTools.Run(ctx, stdin, name, args...)
}

func TestPrefer(t *testing.T) {
	tests := []struct {
		name string
		use  use
		want string
		fact bool
	}{
		{"nothing", use{}, "", false},
		{"nft", use{nft: 3, native: 9}, NameIPTablesNFT, true},
		{"legacy", use{legacy: 3, nft: 2}, NameIPTablesLegacy, true},
		{"native", use{native: 1}, NameNFTables, true},
		{"hint", use{nft: 9, hint: VariantLegacy}, NameIPTablesLegacy, true},
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
		{"nftables", "", "nftables", "", NameNFTables},
		{"variant", "legacy", "iptables", "", NameIPTablesLegacy},
		{"recorded name", "", "iptables-nft", "", NameIPTablesNFT},
		{"no nft", "", "nftables", "nft", ""},
		{"unknown", "", "ipfw", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := allTools()
			delete(f.installed, tt.missing)
			n := newTestNode(t, f, fakeKernel{})
			n.variant = tt.variant
			tables, c, err := n.Select(t.Context(), tt.ask)
			switch {
			case tt.want == "" && !errors.Is(err, ErrUnusable):
				t.Errorf("error %v, want %v", err, ErrUnusable)
			case tt.want != "" && (err != nil || tables.Name() != tt.want || c.Name != tt.want):
				t.Errorf("%v, %v, want %s", c, err, tt.want)
			}
		})
	}
}

// A choice is kept for the boot and shown.
func TestDecisionIsKept(t *testing.T) {
	n := newTestNode(t, allTools(), fakeKernel{})
	if c := n.kept("auto"); c.Name != "" {
		t.Errorf("something was kept: %v", c)
	}
	want := n.keep("auto", Choice{Name: NameNFTables, Reason: "because", Fact: true})
	got, err := Choices(n.runDir)
	if err != nil || got["auto"] != want || want.Decided.IsZero() {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	f := allTools()
	n.run = f
	if tables, c, err := n.Select(t.Context(), "auto"); err != nil || tables.Name() != NameNFTables || c != want {
		t.Errorf("%v, %v", c, err)
	}
	if len(f.runs) > 0 {
		t.Errorf("a choice that was kept runs %q", f.runs)
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
	inNFT := fakeKernel{
		chains: map[string]bool{"2 filter FORWARD": true, "10 filter FORWARD": true},
		nft:    []rtnl.NFTChain{{Family: unix.NFPROTO_IPV4, Table: "filter", Name: "FORWARD", Use: 9}},
	}
	inLegacy := fakeKernel{legacy: []string{"filter"}}
	both := inNFT
	both.legacy = []string{"filter"}
	native := fakeKernel{nft: []rtnl.NFTChain{{Family: unix.NFPROTO_INET, Table: "mine", Name: "in", Use: 3}}}
	own := fakeKernel{nft: []rtnl.NFTChain{
		{Family: unix.NFPROTO_IPV4, Table: nftGuardTable, Name: "prerouting", Use: 3},
		{Family: unix.NFPROTO_BRIDGE, Table: "nat", Name: "PREROUTING", Use: 3},
	}}
	tests := []struct {
		name        string
		kept        Choice
		kernel      fakeKernel
		nft, legacy string // what the tools say
		variant     string
		want        string
	}{
		{"fresh", Choice{Name: NameIPTablesNFT, Fact: true, Seen: time.Now()}, inLegacy, "", theirs, "", NameIPTablesNFT},
		{"fresh, other configuration", Choice{Name: NameIPTablesNFT, Fact: true, Seen: time.Now()}, inNFT, theirs, "", VariantLegacy, NameIPTablesLegacy},
		{"configuration taken back", Choice{Name: NameIPTablesLegacy, Fact: true, Seen: time.Now(), Variant: VariantLegacy}, inNFT, theirs, "", "", NameIPTablesNFT},
		{"old, still so", Choice{Name: NameIPTablesNFT, Fact: true, Seen: old}, inNFT, theirs, "", "", NameIPTablesNFT},
		{"old, moved to legacy", Choice{Name: NameIPTablesNFT, Fact: true, Seen: old}, both, ours, theirs, "", NameIPTablesLegacy},
		{"old, moved to nft", Choice{Name: NameIPTablesLegacy, Fact: true, Seen: old}, both, theirs, ours, "", NameIPTablesNFT},
		{"old, only ours left", Choice{Name: NameIPTablesLegacy, Fact: true, Seen: old}, both, ours, ours, "", NameIPTablesLegacy},
		{"old, a default, nftables by now", Choice{Name: NameIPTablesNFT, Seen: old}, native, "", "", "", NameNFTables},
		{"a default, nftables by now", Choice{Name: NameIPTablesNFT, Seen: time.Now()}, native, "", "", "", NameNFTables},
		{"a default, and our own rules", Choice{Name: NameIPTablesNFT, Seen: time.Now()}, inNFT, ours, "", "", NameIPTablesNFT},
		{"nothing but our own tables", Choice{}, own, "", "", "", NameIPTablesNFT},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := allTools()
			f.answers["iptables-nft-save"], f.answers["iptables-legacy-save"] = tt.nft, tt.legacy
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
			if kept := n.kept("auto"); kept.Name != tt.want || !kept.fresh() && tt.kept.Fact {
				t.Errorf("kept is %+v", kept)
			}
		})
	}
}

// backdate sets when the node was last looked at.
func backdate(t *testing.T, n *Node, seen time.Time) {
	t.Helper()
	path, err := decisionFile(n.runDir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDecisions(n.runDir)
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
