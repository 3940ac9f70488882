// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// ForwardChain is a chain that drops what is forwarded unless a rule accepts it.
type ForwardChain struct {
	Tool    string // as records call it: iptables-nft, iptables-legacy or nftables
	V4, V6  bool   // families that it sees
	Table   string // of nftables, with its family: "inet filter"
	Chain   string
	Accepts bool // some rule of the table accepts packets with the mark
}

// String names the chain for people.
func (c ForwardChain) String() string {
	switch {
	case c.Tool == NameNFTables:
		return fmt.Sprintf("the chain %s of the nftables table %s", c.Chain, c.Table)
	case c.V6:
		return fmt.Sprintf("the chain %s of %s, IPv6,", c.Chain, c.Tool)
	}
	return fmt.Sprintf("the chain %s of %s, IPv4,", c.Chain, c.Tool)
}

// Accept is the command that lets packets with the mark pass.
func (c ForwardChain) Accept(mark uint32) string {
	variant, isIPTables := strings.CutPrefix(c.Tool, NameIPTables+"-")
	if !isIPTables {
		return fmt.Sprintf("nft insert rule %s %s meta mark and %#x == %#x accept", c.Table, c.Chain, mark, mark)
	}
	base := "ip6tables"
	if c.V4 {
		base = "iptables"
	}
	return fmt.Sprintf("%s-%s -I %s -m mark --mark %#x/%#x -j ACCEPT", base, variant, c.Chain, mark, mark)
}

// Advice says which chains drop what the node admits, each with what to do. It
// is for verbs: nothing is started where no chain's policy is to drop, and
// elsewhere at most once in adviceEvery, whoever asks.
func (n *Node) Advice(ctx context.Context) []string {
	if n.mark == 0 || !n.mayDrop() || !n.adviceDue() {
		return nil
	}
	chains, err := n.Forwards(ctx, n.mark)
	if err != nil {
		n.log.Debug("cannot see every FORWARD chain", log.Error(err))
	}
	var out []string
	for _, c := range chains {
		if !c.Accepts {
			out = append(out, fmt.Sprintf("%s drops what is forwarded, also from and to pods that the firewall plugin admits; to let those pass: %s", c, c.Accept(n.mark)))
		}
	}
	return out
}

// adviceEvery is how often the log says what an administrator should do.
const adviceEvery = 10 * time.Minute

// adviceDue reports whether it was long ago that somebody looked, and notes that
// this one does. A clock that went back is long ago.
func (n *Node) adviceDue() bool {
	path, err := fileOfNamespace(n.runDir, "forward-advice")
	if err != nil {
		return false
	}
	if st, err := os.Stat(path); err == nil {
		if age := time.Since(st.ModTime()); age >= 0 && age < adviceEvery {
			return false
		}
	}
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return true
	}
	return os.MkdirAll(n.runDir, 0o755) == nil && os.WriteFile(path, nil, 0o644) == nil
}

// mayDrop reports whether a chain of the FORWARD hook may have the policy to
// drop. Of legacy tables only a tool can tell.
func (n *Node) mayDrop() bool {
	chains, err := n.kernel.NFTChains()
	if err != nil || slices.ContainsFunc(chains, dropsForwarded) {
		return true
	}
	for _, v6 := range []bool{false, true} {
		if names, err := n.kernel.LegacyTables(v6); err != nil || slices.Contains(names, "filter") {
			return true
		}
	}
	return false
}

func dropsForwarded(c rtnl.NFTChain) bool {
	ip := c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET
	return ip && c.Base && c.Drops && c.Hook == nfInetForward
}

// nfInetForward is NF_INET_FORWARD of <linux/netfilter.h>.
const nfInetForward = 2

// Forwards lists the chains of the FORWARD hook whose policy is to drop, and
// whether they accept packets with the mark (all of these bits). Tables whose
// tool is missing are not looked at; the error names them and the list holds the
// others.
func (n *Node) Forwards(ctx context.Context, mark uint32) ([]ForwardChain, error) {
	var out []ForwardChain
	var errs []error
	for _, variant := range []string{VariantNFT, VariantLegacy} {
		t := &IPTables{n.env, variant}
		for _, v6 := range []bool{false, true} {
			if !t.mayHave(v6, "filter", "FORWARD") {
				continue
			}
			have, err := t.read(ctx, v6, "filter")
			errs = append(errs, err)
			if have.policy["FORWARD"] == "DROP" {
				out = append(out, ForwardChain{Tool: t.Name(), V4: !v6, V6: v6, Chain: "FORWARD", Accepts: have.acceptsMark(mark)})
			}
		}
	}
	native, err := n.nftForwards(ctx, mark)
	return append(out, native...), errors.Join(append(errs, err)...)
}

// acceptsMark looks for the rule anywhere: which way leads to it is the
// administrator's business.
func (t table) acceptsMark(mark uint32) bool {
	want := fmt.Sprintf("--mark %#x/%#x", mark, mark)
	for _, rules := range t.chains {
		for _, r := range rules {
			if containsAll(r, []string{want, "-j ACCEPT"}) {
				return true
			}
		}
	}
	return false
}

// nftForwards are the chains of nftables proper: iptables' own tables are read
// by iptables.
func (n *Node) nftForwards(ctx context.Context, mark uint32) ([]ForwardChain, error) {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // who uses nftables has it
	}
	out, err := n.run.Run(ctx, "", path, "-j", "list", "chains")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	var all struct {
		Objects []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("%w: decode the output of nft: %w", ErrUnusable, err)
	}
	var found []ForwardChain
	for _, o := range all.Objects {
		c := o.Chain
		if c == nil || c.Hook != "forward" || c.Policy != "drop" || c.Table == "filter" && c.Name == "FORWARD" && c.Family != "inet" {
			continue
		}
		v4, v6 := c.Family == "ip" || c.Family == "inet", c.Family == "ip6" || c.Family == "inet"
		if !v4 && !v6 {
			continue
		}
		rules, err := n.run.Run(ctx, "", path, "-j", "list", "table", c.Family, c.Table)
		if err != nil {
			return found, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		found = append(found, ForwardChain{"nftables", v4, v6, c.Family + " " + c.Table, c.Name, nftAcceptsMark(rules, mark)})
	}
	return found, nil
}

// nftAcceptsMark looks for a rule that compares the mark with a value that has
// the bits, and accepts.
func nftAcceptsMark(listing string, mark uint32) bool {
	var l nftList
	if json.Unmarshal([]byte(listing), &l) != nil || l.compact() != nil {
		return false
	}
	for _, o := range l.Objects {
		if o.Rule == nil {
			continue
		}
		e := string(o.Rule.Expr)
		if strings.Contains(e, `"key":"mark"`) && strings.Contains(e, `"accept"`) && strings.Contains(e, fmt.Sprint(mark)) {
			return true
		}
	}
	return false
}

// Usage is who uses which kind of tables.
type Usage struct {
	NFT    int `json:"iptables_nft"` // rules in the tables of iptables-nft
	Legacy int `json:"iptables_legacy"`
	Native int `json:"nftables"` // rules in other tables of nftables
}

// Usage counts rules; those of our own tables are left out.
func (n *Node) Usage(ctx context.Context) (Usage, error) {
	u, err := n.lookUse(ctx)
	return Usage{u.nft, u.legacy, u.native}, err
}
