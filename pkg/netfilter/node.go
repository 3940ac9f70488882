// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
)

// DefaultRunDir is where the lock and the decision are.
const DefaultRunDir = "/run/sluice"

// PortTables publishes ports.
type PortTables interface {
	AddPorts(ctx context.Context, p Ports) error
	DelPorts(ctx context.Context, h Held) error
	CheckPorts(ctx context.Context, p Ports) error
	SweepPorts(ctx context.Context, network string, keep func(containerID string) bool) error
}

// MasqTables masquerades.
type MasqTables interface {
	AddMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error
	// DelMasq takes out the addresses, with nil all but spare that bears the attachment's name.
	DelMasq(ctx context.Context, ref attachments.ID, addrs, spare []netip.Prefix) error
	CheckMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error
	SweepMasq(ctx context.Context, network string, keep []attachments.ID) error
}

// FirewallTables admits addresses and isolates bridges.
type FirewallTables interface {
	AddFirewall(ctx context.Context, f Firewall) error
	DelFirewall(ctx context.Context, w Withdrawal) error
	CheckFirewall(ctx context.Context, f Firewall) error
	// Strangers reports whether addresses are admitted that known does not know.
	Strangers(ctx context.Context, known func(netip.Addr) bool) (bool, error)
}

// LocalnetTables lets the node's own processes reach pods from 127.0.0.1.
type LocalnetTables interface {
	EnableLocalnet(ctx context.Context, ifname string) error
	DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error
	// Guarded lists the devices that are enabled.
	Guarded(ctx context.Context) ([]string, error)
}

// Tables is one of iptables-nft, iptables-legacy and nftables.
type Tables interface {
	// Name is what attachment records call it.
	Name() string
	PortTables
	MasqTables
	FirewallTables
	LocalnetTables
}

var (
	_ Tables = (*IPTables)(nil)
	_ Tables = (*NFTables)(nil)
)

// Options of a Node. The zero value works.
type Options struct {
	RunDir  string // empty: DefaultRunDir
	Default string // the node-wide backend: auto, ebpf, nftables or iptables; empty: auto
	// Firewall is the default for the firewall plugin; empty: Default.
	Firewall string
	// AdmitMark is or-ed into the mark of packets that nftables admits.
	AdmitMark uint32
	Variant   string // of iptables: auto, nft or legacy; empty: auto
	Log       *log.Logger
}

// Node chooses among the tables of the calling thread's network namespace.
type Node struct {
	env
	byDefault, firewall, variant string
}

// NewNode returns a Node. It looks at nothing yet.
func NewNode(o Options) *Node {
	n := &Node{env: env{run: programs{}, runDir: o.RunDir, log: o.Log, kernel: system{}, mark: o.AdmitMark}, byDefault: o.Default, firewall: o.Firewall, variant: o.Variant}
	if n.runDir == "" {
		n.runDir = DefaultRunDir
	}
	if n.log == nil {
		n.log = log.NewNop()
	}
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

// Default is the node-wide backend: auto, ebpf, nftables or iptables.
func (n *Node) Default() string { return n.byDefault }

// FirewallDefault is Default for the firewall plugin, which knows firewalld too.
func (n *Node) FirewallDefault() string { return n.firewall }

// All returns every kind of tables there may be, for what has no record.
func (n *Node) All() []Tables {
	return []Tables{&IPTables{n.env, VariantNFT}, &IPTables{n.env, VariantLegacy}, &NFTables{n.env}}
}

// Named returns the tables that a record names.
func (n *Node) Named(name string) (Tables, bool) {
	for _, t := range n.All() {
		if t.Name() == name {
			return t, true
		}
	}
	return nil, false
}

// Firewalld returns the backend that asks firewalld.
func (n *Node) Firewalld() *Firewalld { return &Firewalld{} }

// Select returns the tables for a new attachment: those of a name ("nftables",
// "iptables-nft", "iptables-legacy"), the variant of iptables that the node uses
// ("iptables"), or what the node uses ("auto"). A choice is kept, and compared
// with the node every choiceAge; one that was only a default each time, without
// much effort. Another configuration is another choice. The error wraps
// ErrUnusable when the tools are missing.
func (n *Node) Select(ctx context.Context, name string) (Tables, Choice, error) {
	if name == NameIPTables && n.variant != "" {
		name = NameIPTables + "-" + n.variant
	}
	if t, ok := n.Named(name); ok {
		return t, Choice{Name: name, Reason: "configured", Fact: true}, usable(ctx, t)
	}
	if name != NameIPTables && name != "auto" {
		return nil, Choice{}, fmt.Errorf("%w: no tables are called %q", ErrUnusable, name)
	}
	kept := n.kept(name)
	t, ok := n.Named(kept.Name)
	valid := ok && kept.Variant == n.variant && installed(ctx, t)
	if valid && kept.Fact && kept.fresh() {
		return t, kept, nil
	}
	c, other, err := n.choose(ctx, name, valid && !kept.fresh())
	if err != nil {
		return nil, Choice{}, err
	}
	switch {
	case !valid:
	case !kept.fresh() && (c.Name == kept.Name || !c.Fact):
		return t, n.keep(name, kept), nil
	case c.Name == kept.Name: // what speaks for it now may be our own rules
		return t, kept, nil
	}
	c.Variant = n.variant
	c = n.keep(name, c)
	n.log.Warn("chose the netfilter tables to use", log.String("asked", name), log.String("backend", c.Name), log.String("reason", c.Reason))
	return other, c, nil
}

// choose looks at the node. What is in use and can be used is taken, else the
// variant that the iptables program is, else what can be used at all. With
// strangers only rules that no CNI plugin made speak for anything.
func (n *Node) choose(ctx context.Context, asked string, strangers bool) (Choice, Tables, error) {
	look := n.lookUse
	if strangers {
		look = n.lookStrangers
	}
	u, err := look(ctx)
	if err != nil {
		n.log.Warn("cannot see which tables the node uses", log.Error(err))
	}
	preferred, why, fact := u.prefer()
	var errs []error
	try := func(name string) Tables {
		t, ok := n.Named(name)
		if !ok || asked == NameIPTables && name == NameNFTables {
			return nil
		}
		if n.variant != "" && name != NameNFTables && name != NameIPTables+"-"+n.variant {
			return nil // the operator says otherwise
		}
		if err := usable(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			return nil
		}
		return t
	}
	if t := try(preferred); t != nil {
		return Choice{Name: preferred, Reason: why, Fact: fact}, t, nil
	}
	if fact {
		why = fmt.Sprintf("%s, but %s cannot be used here", why, preferred)
	}
	for _, name := range append(n.defaultVariants(ctx), NameNFTables) {
		if t := try(name); t != nil {
			return Choice{Name: name, Reason: why + "; it is the first that works"}, t, nil
		}
	}
	return Choice{}, nil, fmt.Errorf("%w: %w", ErrUnusable, errors.Join(errs...))
}

// defaultVariants are the variants of iptables, that of the iptables program
// first.
func (n *Node) defaultVariants(ctx context.Context) []string {
	order := []string{NameIPTablesNFT, NameIPTablesLegacy}
	path, err := n.run.LookPath("iptables")
	if err != nil {
		return order
	}
	if out, err := n.run.Run(ctx, "", path, "--version"); err == nil && variantOf(out) == VariantLegacy {
		order[0], order[1] = order[1], order[0]
	}
	return order
}

// usable reports why tables cannot be used, by using them.
func usable(ctx context.Context, t Tables) error {
	switch t := t.(type) {
	case *IPTables:
		return t.Usable(ctx, false)
	case *NFTables:
		return t.Usable(ctx)
	}
	return nil
}

// installed reports whether the program is still there, without starting it.
func installed(ctx context.Context, t Tables) bool {
	var err error
	switch t := t.(type) {
	case *IPTables:
		_, err = t.program(ctx, false, "restore")
	case *NFTables:
		_, err = t.run.LookPath("nft")
	}
	return err == nil
}
