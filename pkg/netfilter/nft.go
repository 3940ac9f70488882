// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// NFTables is the nft program. A change is one script, that is one transaction,
// and one process; both families of addresses go into the same one.
//
// sigs.k8s.io/knftables is not used: its package initialisation costs every
// start of every plugin 0.2 ms, its New starts nft twice per table, and its lists
// do not hold what a rule does, which telling one attachment's rules from those
// of another of the same container takes.
type NFTables struct{ env }

// Name returns what records call it.
func (*NFTables) Name() string { return NameNFTables }

// Usable reports why nft cannot be used.
func (n *NFTables) Usable(ctx context.Context) error {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return fmt.Errorf("%w: nft is not installed", ErrUnusable)
	}
	if _, err := n.run.Run(ctx, "add table inet "+nftMasqTable+"\n", path, "--check", "-f", "-"); err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return nil
}

// nftScript is a transaction under way.
type nftScript struct {
	lines []string
}

func (s *nftScript) add(format string, a ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, a...))
}

// table makes a table. The comment is for people; kernels before 5.10 have none.
func (s *nftScript) table(family, name, comment string) {
	s.add("add table %s %s { comment %q ; }", family, name, comment)
}

// only makes a chain with these rules and no others, whoever was there before.
func (s *nftScript) only(family, table, chain, base string, rules ...string) {
	if base != "" {
		base = " { type " + base + " ; }"
	}
	s.add("add chain %s %s %s%s", family, table, chain, base)
	s.add("flush chain %s %s %s", family, table, chain)
	for _, r := range rules {
		s.add("add rule %s %s %s %s", family, table, chain, r)
	}
}

func (s *nftScript) drop(r nftRule) {
	s.add("delete rule %s %s %s handle %d", r.Family, r.Table, r.Chain, r.Handle)
}

// nftRule is a rule as nft -j lists it.
type nftRule struct {
	Family, Table, Chain, Comment string
	Handle                        int
	Expr                          json.RawMessage
}

// mentions reports that a value of the rule is the string.
func (r nftRule) mentions(value string) bool { return strings.Contains(string(r.Expr), `"`+value+`"`) }

// nftList is the part of libnftables-json(5) that is read.
type nftList struct {
	Objects []struct {
		Chain *struct{ Family, Table, Name string }
		Rule  *nftRule
		Set   *nftSet
	} `json:"nftables"`
}

// nftSet is a set with its elements, each a value or an object around one.
type nftSet struct {
	Family, Table, Name string
	Elem                []json.RawMessage
}

// edit changes a table in one transaction: plan sees the table (empty if there
// is none) and writes what has to happen. When somebody else changed it in
// between, all of it is done again. The caller holds the lock.
func (n *NFTables) edit(ctx context.Context, tables []nftName, plan func(nftList) nftScript) error {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return fmt.Errorf("%w: nft is not installed", ErrUnusable)
	}
	var last error
	for range attempts {
		have, err := n.list(ctx, path, tables)
		if err != nil {
			return err
		}
		s := plan(have)
		if len(s.lines) == 0 {
			return nil
		}
		if last = n.apply(ctx, path, s); last == nil {
			return nil
		}
		var failed *toolError
		if !errors.As(last, &failed) {
			return last
		}
		again, err := n.list(ctx, path, tables)
		if err != nil {
			return err
		}
		if sameList(have, again) {
			return last
		}
	}
	return fmt.Errorf("%w: nftables changed %d times: %w", ErrBusy, attempts, last)
}

// apply runs a script. Where the kernel knows no comments on tables it is run
// again without them.
func (n *NFTables) apply(ctx context.Context, path string, s nftScript) error {
	_, err := n.run.Run(ctx, strings.Join(s.lines, "\n")+"\n", path, "-f", "-")
	var failed *toolError
	if err == nil || !errors.As(err, &failed) {
		return err
	}
	plain := make([]string, len(s.lines))
	for i, l := range s.lines {
		if strings.HasPrefix(l, "add table ") {
			l, _, _ = strings.Cut(l, " { comment")
		}
		plain[i] = l
	}
	if _, again := n.run.Run(ctx, strings.Join(plain, "\n")+"\n", path, "-f", "-"); again != nil {
		return err
	}
	return nil
}

// nftName names a table by its family and a chain in it that tells that it is
// there.
type nftName struct{ family, table, chain string }

func (t nftName) number() int {
	switch t.family {
	case "ip":
		return unix.NFPROTO_IPV4
	case "ip6":
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_INET
}

// list reads the tables that are there.
func (n *NFTables) list(ctx context.Context, path string, tables []nftName) (nftList, error) {
	var all nftList
	for _, t := range tables {
		if there, err := n.kernel.HasNFTChain(t.number(), t.table, t.chain); err == nil && !there {
			continue
		}
		out, err := n.run.Run(ctx, "", path, "-j", "list", "table", t.family, t.table)
		if err != nil {
			if there, kerr := n.kernel.HasNFTChain(t.number(), t.table, t.chain); kerr == nil && !there {
				continue // went between the two looks
			}
			return all, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		var l nftList
		if err := json.Unmarshal([]byte(out), &l); err != nil {
			return all, fmt.Errorf("%w: decode the output of nft: %w", ErrUnusable, err)
		}
		if err := l.compact(); err != nil {
			return all, fmt.Errorf("%w: decode the output of nft: %w", ErrUnusable, err)
		}
		all.Objects = append(all.Objects, l.Objects...)
	}
	return all, nil
}

// compact takes the white space out of expressions, so that they can be searched
// whatever nft's release writes.
func (l nftList) compact() error {
	for _, o := range l.Objects {
		if o.Rule == nil {
			continue
		}
		var b bytes.Buffer
		if err := json.Compact(&b, o.Rule.Expr); err != nil {
			return err
		}
		o.Rule.Expr = b.Bytes()
	}
	return nil
}

// rules returns the rules of a chain in all tables of the list.
func (l nftList) rules(chain string) []nftRule {
	var out []nftRule
	for _, o := range l.Objects {
		if o.Rule != nil && o.Rule.Chain == chain {
			out = append(out, *o.Rule)
		}
	}
	return out
}

// set returns a set, without elements if there is none.
func (l nftList) set(name string) nftSet {
	for _, o := range l.Objects {
		if o.Set != nil && o.Set.Name == name {
			return *o.Set
		}
	}
	return nftSet{}
}

func sameList(a, b nftList) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// remove edits tables if one of them is there, else it does nothing at all.
func (n *NFTables) remove(ctx context.Context, tables []nftName, plan func(nftList) nftScript) error {
	if err := n.idle(ctx); err != nil {
		return err
	}
	there := false
	for _, t := range tables {
		has, err := n.kernel.HasNFTChain(t.number(), t.table, t.chain)
		there = there || has || err != nil
	}
	if !there {
		return nil
	}
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, tables, plan)
}

func nftFamily(v6 bool) string {
	if v6 {
		return "ip6"
	}
	return "ip"
}
