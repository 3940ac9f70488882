// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ForwardChain is a chain that drops what is forwarded unless a rule accepts it.
type ForwardChain struct {
	Tool    string // as records call it: iptables-nft, iptables-legacy or nftables
	V4, V6  bool   // families that it sees
	Table   string // of nftables, with its family: "inet filter"
	Chain   string
	Accepts bool // some rule of the table accepts packets with the mark
}

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
