// SPDX-License-Identifier: Apache-2.0

// Package choice knows which netfilter tables the node uses: iptables-nft,
// iptables-legacy or nftables. The plugins take tables for a new attachment from
// it, and find those of a record. The operator's tool looks at all of them. It
// owns the decision in /run/sluice and no rule.
package choice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
	"github.com/sluice-cni/sluice/pkg/netfilter/nftables"
)

// Tool is one kind of tables, as a Node uses it.
type Tool interface {
	netfilter.Tables
	// Usable reports why the tables cannot be used, by using them.
	Usable(ctx context.Context) error
	// Installed reports that the program is missing. It starts none where it can.
	Installed(ctx context.Context) error
	// RuleSets lists what CNI plugins have in the tables. The error names what
	// could not be read; the list holds the rest.
	RuleSets(ctx context.Context) ([]netfilter.RuleSet, error)
	// RemoveRuleSets removes those of these tables.
	RemoveRuleSets(ctx context.Context, sets []netfilter.RuleSet) error
	// Forwards lists chains that drop what is forwarded.
	Forwards(ctx context.Context, mark uint32) ([]netfilter.ForwardChain, error)
	// MarksAnswers reports whether answers to packets with the mark get it.
	MarksAnswers(ctx context.Context, v6 bool, mark uint32) (bool, error)
	// AdmitMarked lets packets with the mark that come by these devices pass a chain
	// of Forwards, and their answers, as far as the chain is not a third party's.
	AdmitMarked(ctx context.Context, c netfilter.ForwardChain, from []string, mark uint32) error
}

var (
	_ Tool = (*iptables.Tables)(nil)
	_ Tool = (*nftables.Tables)(nil)
)

// Options of a Node. The zero value works.
type Options struct {
	RunDir  string // empty: /run/sluice
	Default string // the node-wide backend, as `backend` in the node's configuration; empty: auto
	// Firewall is the default for the firewall plugin; empty: Default.
	Firewall string
	// AdmitMark is or-ed into the mark of packets that nftables admits.
	AdmitMark uint32
	Variant   string // of iptables: auto, nft or legacy; empty: auto
	Log       *log.Logger
}

// Node chooses among the tables of the calling thread's network namespace.
type Node struct {
	env                          tool.Env
	byDefault, firewall, variant string
}

// New returns a Node. It looks at nothing yet.
func New(o Options) *Node {
	n := &Node{env: tool.NewEnv(o.RunDir, o.AdmitMark, o.Log), byDefault: o.Default, firewall: o.Firewall, variant: o.Variant}
	if n.byDefault == "" {
		n.byDefault = "auto"
	}
	if n.firewall == "" {
		n.firewall = n.byDefault
	}
	if n.variant == "auto" {
		n.variant = ""
	}
	return n
}

// Default is the node-wide backend, as `backend` in the node's configuration.
func (n *Node) Default() string { return n.byDefault }

// FirewallDefault is Default for the firewall plugin, which knows firewalld too.
func (n *Node) FirewallDefault() string { return n.firewall }

// tools are all kinds of tables.
func (n *Node) tools() []Tool {
	return []Tool{iptables.New(n.env, iptables.VariantNFT), iptables.New(n.env, iptables.VariantLegacy), nftables.New(n.env)}
}

func (n *Node) tool(name string) (Tool, bool) {
	for _, t := range n.tools() {
		if t.Name() == name {
			return t, true
		}
	}
	return nil, false
}

// All returns every kind of tables there may be, for what has no record.
func (n *Node) All() []netfilter.Tables {
	var out []netfilter.Tables
	for _, t := range n.tools() {
		out = append(out, t)
	}
	return out
}

// Named returns the tables that a record names.
func (n *Node) Named(name string) (netfilter.Tables, bool) {
	return n.tool(name)
}

// RuleSets lists what CNI plugins have in all tables. Nothing is started for
// tables that do not have their chains. The error names what could not be read;
// the list holds the rest.
func (n *Node) RuleSets(ctx context.Context) ([]netfilter.RuleSet, error) {
	var out []netfilter.RuleSet
	var errs []error
	for _, t := range n.tools() {
		found, err := t.RuleSets(ctx)
		out, errs = append(out, found...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// Remove removes what RuleSets returned. What has changed since then is in use
// again and stays.
func (n *Node) Remove(ctx context.Context, sets []netfilter.RuleSet) error {
	var errs []error
	for _, t := range n.tools() {
		errs = append(errs, t.RemoveRuleSets(ctx, sets))
	}
	return errors.Join(errs...)
}

// Select returns the tables for a new attachment: those of a name ("nftables",
// "iptables-nft", "iptables-legacy"), the variant of iptables that the node uses
// ("iptables"), or what the node uses ("auto"). A choice is kept, and compared
// with the node every choiceAge; one that was only a default each time, without
// much effort. Another configuration is another choice. The error wraps
// netfilter.ErrUnusable when the tools are missing.
func (n *Node) Select(ctx context.Context, name string) (netfilter.Tables, netfilter.Choice, error) {
	if name == netfilter.NameIPTables && n.variant != "" {
		name = netfilter.NameIPTables + "-" + n.variant
	}
	if t, ok := n.tool(name); ok {
		return t, netfilter.Choice{Name: name, Reason: "configured", Fact: true}, t.Usable(ctx)
	}
	if name != netfilter.NameIPTables && name != "auto" {
		return nil, netfilter.Choice{}, fmt.Errorf("%w: no tables are called %q", netfilter.ErrUnusable, name)
	}
	kept := n.kept(name)
	t, ok := n.tool(kept.Name)
	valid := ok && kept.Variant == n.variant && t.Installed(ctx) == nil
	if valid && kept.Fact && fresh(kept) {
		return t, kept, nil
	}
	c, other, err := n.choose(ctx, name, valid && !fresh(kept))
	if err != nil {
		return nil, netfilter.Choice{}, err
	}
	switch {
	case !valid:
	case !fresh(kept) && (c.Name == kept.Name || !c.Fact):
		return t, n.keep(name, kept), nil
	case c.Name == kept.Name: // what speaks for it now may be rules of Sluice
		return t, kept, nil
	}
	c.Variant = n.variant
	c = n.keep(name, c)
	n.env.Log.Warn("chose the netfilter tables to use", log.String("asked", name), log.String("backend", c.Name), log.String("reason", c.Reason))
	return other, c, nil
}

// choose looks at the node. What is in use and can be used is taken, else the
// variant that the iptables program is, else what can be used at all. With
// thirdParty only rules that no CNI plugin made speak for anything.
func (n *Node) choose(ctx context.Context, asked string, thirdParty bool) (netfilter.Choice, Tool, error) {
	u, err := n.lookUse(ctx, thirdParty)
	if err != nil {
		n.env.Log.Warn("cannot see which tables the node uses", log.Error(err))
	}
	preferred, why, fact := u.prefer()
	var errs []error
	try := func(name string) Tool {
		t, ok := n.tool(name)
		if !ok || asked == netfilter.NameIPTables && name == netfilter.NameNFTables {
			return nil
		}
		if n.variant != "" && name != netfilter.NameNFTables && name != netfilter.NameIPTables+"-"+n.variant {
			return nil // the operator says otherwise
		}
		if err := t.Usable(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			return nil
		}
		return t
	}
	if t := try(preferred); t != nil {
		return netfilter.Choice{Name: preferred, Reason: why, Fact: fact}, t, nil
	}
	if fact {
		why = fmt.Sprintf("%s, but %s cannot be used here", why, preferred)
	}
	for _, name := range append(n.defaultVariants(ctx), netfilter.NameNFTables) {
		if t := try(name); t != nil {
			return netfilter.Choice{Name: name, Reason: why + "; it is the first that works"}, t, nil
		}
	}
	return netfilter.Choice{}, nil, fmt.Errorf("%w: %w", netfilter.ErrUnusable, errors.Join(errs...))
}

// defaultVariants are the variants of iptables, that of the iptables program
// first.
func (n *Node) defaultVariants(ctx context.Context) []string {
	order := []string{netfilter.NameIPTablesNFT, netfilter.NameIPTablesLegacy}
	path, err := n.env.LookPath("iptables")
	if err != nil {
		return order
	}
	if out, err := n.env.Run(ctx, "", path, "--version"); err == nil && iptables.VariantOf(out) == iptables.VariantLegacy {
		order[0], order[1] = order[1], order[0]
	}
	return order
}
