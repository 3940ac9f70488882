// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Variants of iptables.
const (
	VariantNFT    = "nft"
	VariantLegacy = "legacy"
)

// IPTables is one variant of iptables and ip6tables. Reading is one process per
// family, writing another. Neither coreos/go-iptables nor the iptables program
// itself can do that: they take a process, and in the legacy variant the xtables
// lock, per rule, and leave half of the rules when one fails.
type IPTables struct {
	env
	variant string
}

// Name returns what records call it.
func (t *IPTables) Name() string { return NameIPTables + "-" + t.variant }

// program finds the save or restore program of a family: by the variant's name,
// or the one without a variant if it is of this one.
func (t *IPTables) program(ctx context.Context, v6 bool, verb string) (string, error) {
	base := "iptables"
	if v6 {
		base = "ip6tables"
	}
	name := base + "-" + t.variant + "-" + verb
	if path, err := t.run.LookPath(name); err == nil {
		return path, nil
	}
	path, err := t.run.LookPath(base + "-" + verb)
	if err != nil {
		return "", fmt.Errorf("%w: %s is not installed", ErrUnusable, name)
	}
	out, err := t.run.Run(ctx, "", path, "--version")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if variantOf(out) != t.variant {
		return "", fmt.Errorf("%w: %s is not installed, and %s is the other variant", ErrUnusable, name, path)
	}
	return path, nil
}

// variantOf reads "iptables v1.8.9 (nf_tables)"; before 1.8 there was only
// legacy, and no word of it.
func variantOf(version string) string {
	if strings.Contains(version, "nf_tables") {
		return VariantNFT
	}
	return VariantLegacy
}

// Usable reports why the tool cannot be used for the families.
func (t *IPTables) Usable(ctx context.Context, v6 ...bool) error {
	for _, f := range v6 {
		if _, err := t.program(ctx, f, "restore"); err != nil {
			return err
		}
		if _, err := t.read(ctx, f, "nat"); err != nil {
			return err
		}
	}
	return nil
}

// read returns a table.
func (t *IPTables) read(ctx context.Context, v6 bool, name string) (table, error) {
	save, err := t.program(ctx, v6, "save")
	if err != nil {
		return table{}, err
	}
	out, err := t.run.Run(ctx, "", save, "-t", name)
	if err != nil {
		return table{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return parseTable(out), nil
}

// edit changes a table in one transaction: plan sees what is there and writes
// what has to happen; if it writes nothing, nothing is run. The caller holds the
// lock. When the table changed in between, all of it is done again.
func (t *IPTables) edit(ctx context.Context, v6 bool, name string, plan func(table) (script, error)) error {
	var last error
	for range attempts {
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
		_, last = t.run.Run(ctx, s.input(name), restore, "--noflush", "--wait", xtablesWait)
		var failed *toolError
		switch {
		case last == nil:
			return nil
		case !errors.As(last, &failed):
			return last
		case failed.status == statusBusy && strings.Contains(failed.stderr, "xtables lock"):
			return fmt.Errorf("%w: the xtables lock was not free for %s s: %w", ErrBusy, xtablesWait, last)
		}
		again, err := t.read(ctx, v6, name)
		if err != nil {
			return err
		}
		if sameTable(have, again) { // nobody interfered: it is the rules that are wrong
			return last
		}
	}
	return fmt.Errorf("%w: the table %s changed %d times: %w", ErrBusy, name, attempts, last)
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
func (t *IPTables) mayHave(v6 bool, name string, chains ...string) bool {
	if t.variant == VariantLegacy {
		tables, err := t.kernel.LegacyTables(v6)
		return err != nil || slices.Contains(tables, name)
	}
	family := unix.NFPROTO_IPV4
	if v6 {
		family = unix.NFPROTO_IPV6
	}
	for _, c := range chains {
		if has, err := t.kernel.HasNFTChain(family, name, c); has || err != nil {
			return true
		}
	}
	return false
}

// remove changes the tables of the families that can hold one of the chains.
func (t *IPTables) remove(ctx context.Context, name string, plan func(v6 bool, have table) (script, error), chains ...string) error {
	var (
		errs   []error
		unlock func()
	)
	if err := t.idle(ctx); err != nil {
		return err
	}
	for _, v6 := range []bool{false, true} {
		if !t.mayHave(v6, name, chains...) {
			continue
		}
		if unlock == nil {
			var err error
			if ctx, unlock, err = t.lock(ctx); err != nil {
				return err
			}
			defer unlock()
		}
		errs = append(errs, t.edit(ctx, v6, name, func(have table) (script, error) { return plan(v6, have) }))
	}
	return errors.Join(errs...)
}
