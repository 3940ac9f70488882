// SPDX-License-Identifier: Apache-2.0

// Package iptables carries out hostPorts, masquerade and the firewall by iptables
// and ip6tables, in the nft or the legacy variant. Chains and comments have the
// names of the upstream plugins v1.9.1, so that either suite cleans up what the
// other made. A change is one transaction (iptables-restore --noflush). It is
// tried again if another process changed the table, and no wait is without bound.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
)

// Variants of iptables.
const (
	VariantNFT    = "nft"
	VariantLegacy = "legacy"
)

// xtablesWait bounds the wait for the xtables lock, in seconds: an operator
// with an interactive iptables must not hang a runtime.
const xtablesWait = "5"

// Tables is one variant of iptables and ip6tables. Reading is one process for each
// family, writing another. Neither coreos/go-iptables nor the iptables program
// itself can do that. They take a process for each rule, and in the legacy variant
// the xtables lock. They leave half of the rules when one fails.
type Tables struct {
	env     tool.Env
	variant string
}

var _ netfilter.Tables = (*Tables)(nil)

// New returns the tables of a variant.
func New(env tool.Env, variant string) *Tables { return &Tables{env, variant} }

// Name returns what records call it.
func (t *Tables) Name() string { return netfilter.NameIPTables + "-" + t.variant }

// program finds the save or restore program of a family: by the variant's name,
// or the one without a variant if it is of this one.
func (t *Tables) program(ctx context.Context, v6 bool, verb string) (string, error) {
	base := "iptables"
	if v6 {
		base = "ip6tables"
	}
	name := base + "-" + t.variant + "-" + verb
	if path, err := t.env.LookPath(name); err == nil {
		return path, nil
	}
	path, err := t.env.LookPath(base + "-" + verb)
	if err != nil {
		return "", fmt.Errorf("%w: %s is not installed", netfilter.ErrUnusable, name)
	}
	out, err := t.env.Run(ctx, "", path, "--version")
	if err != nil {
		return "", fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
	}
	if VariantOf(out) != t.variant {
		return "", fmt.Errorf("%w: %s is not installed, and %s is the other variant", netfilter.ErrUnusable, name, path)
	}
	return path, nil
}

// VariantOf reads "iptables v1.8.9 (nf_tables)"; before 1.8 there was only
// legacy, and no word of it.
func VariantOf(version string) string {
	if strings.Contains(version, "nf_tables") {
		return VariantNFT
	}
	return VariantLegacy
}

// Usable reports why the tool cannot be used, by using it.
func (t *Tables) Usable(ctx context.Context) error {
	if err := t.Installed(ctx); err != nil {
		return err
	}
	_, err := t.read(ctx, false, "nat")
	return err
}

// Installed reports that the program is missing.
func (t *Tables) Installed(ctx context.Context) error {
	_, err := t.program(ctx, false, "restore")
	return err
}

// read returns a table.
func (t *Tables) read(ctx context.Context, v6 bool, name string) (table, error) {
	save, err := t.program(ctx, v6, "save")
	if err != nil {
		return table{}, err
	}
	out, err := t.env.Run(ctx, "", save, "-t", name)
	if err != nil {
		return table{}, fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
	}
	return parseTable(out), nil
}

// edit changes a table in one transaction: plan sees what is there and writes
// what has to happen; if it writes nothing, nothing is run. The caller holds the
// lock. When the table changed in between, all of it is done again.
func (t *Tables) edit(ctx context.Context, v6 bool, name string, plan func(table) (script, error)) error {
	var last error
	for range tool.Attempts {
		have, err := t.read(ctx, v6, name)
		if err != nil {
			return err
		}
		s, err := plan(have)
		if err != nil || s.empty() {
			return err
		}
		restore, err := t.program(ctx, v6, "restore")
		if err != nil {
			return err
		}
		_, last = t.env.Run(ctx, s.input(name), restore, "--noflush", "--wait", xtablesWait)
		var failed *tool.Error
		switch {
		case last == nil:
			return nil
		case !errors.As(last, &failed):
			return last
		case failed.Status == statusBusy && strings.Contains(failed.Stderr, "xtables lock"):
			return fmt.Errorf("%w: the xtables lock was not free for %s s: %w", netfilter.ErrBusy, xtablesWait, last)
		}
		again, err := t.read(ctx, v6, name)
		if err != nil {
			return err
		}
		if sameTable(have, again) { // the rules are wrong, as no other process changed the table
			return last
		}
	}
	return fmt.Errorf("%w: the table %s changed %d times: %w", netfilter.ErrBusy, name, tool.Attempts, last)
}

// statusBusy is RESOURCE_PROBLEM of xtables: the lock was not to be had, which
// the message says, or the kernel refused the change, for whatever reason.
const statusBusy = 4

func sameTable(a, b table) bool {
	if len(a.chains) != len(b.chains) {
		return false
	}
	for c, rules := range a.chains {
		if !b.has(c) || !slices.Equal(rules, b.chains[c]) {
			return false
		}
	}
	return true
}

// mayHave reports whether a table of this variant can hold one of the chains.
// It starts nothing. Unsure is yes.
func (t *Tables) mayHave(v6 bool, name string, chains ...string) bool {
	if t.variant == VariantLegacy {
		tables, err := t.env.LegacyTables(v6)
		return err != nil || slices.Contains(tables, name)
	}
	family := unix.NFPROTO_IPV4
	if v6 {
		family = unix.NFPROTO_IPV6
	}
	for _, c := range chains {
		if has, err := t.env.HasNFTChain(family, name, c); has || err != nil {
			return true
		}
	}
	return false
}

// remove changes the tables of the families that can hold one of the chains.
func (t *Tables) remove(ctx context.Context, name string, plan func(v6 bool, have table) (script, error), chains ...string) error {
	var (
		errs   []error
		unlock func()
	)
	if err := t.env.Idle(ctx); err != nil {
		return err
	}
	for _, v6 := range []bool{false, true} {
		if !t.mayHave(v6, name, chains...) {
			continue
		}
		if unlock == nil {
			var err error
			if ctx, unlock, err = t.env.Lock(ctx); err != nil {
				return err
			}
			defer unlock()
		}
		errs = append(errs, t.edit(ctx, v6, name, func(have table) (script, error) { return plan(v6, have) }))
	}
	return errors.Join(errs...)
}
