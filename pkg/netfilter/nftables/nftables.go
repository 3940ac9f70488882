// SPDX-License-Identifier: Apache-2.0

// Package nftables carries out hostPorts, masquerade and the firewall by nft.
// Tables, chains and comments have the names of the upstream plugins v1.9.1, so
// that either suite cleans up what the other made. A change is one transaction
// (nft -f). It is tried again if another process changed the tables. It imports
// package iptables for one thing: FORWARD must accept what this table admits.
package nftables

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
)

// Tables are those of the nft program. A change is one script, that is one
// transaction, and one process. Both families of addresses go into the same one.
//
// sigs.k8s.io/knftables is not used. Its package initialisation costs every start
// of every plugin 0.2 ms, and its New starts nft twice for each table. Its lists do
// not hold what a rule does, which telling the rules of one attachment from those
// of another one of the same container takes.
type Tables struct{ env tool.Env }

var _ netfilter.Tables = (*Tables)(nil)

// New returns the node's tables.
func New(env tool.Env) *Tables { return &Tables{env} }

// Name returns what records call it.
func (*Tables) Name() string { return netfilter.NameNFTables }

// Usable reports why nft cannot be used.
func (n *Tables) Usable(ctx context.Context) error {
	path, err := n.program()
	if err != nil {
		return err
	}
	if _, err := n.env.Run(ctx, "add table inet "+masqTable+"\n", path, "--check", "-f", "-"); err != nil {
		return fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
	}
	return nil
}

// Installed reports that the program is missing.
func (n *Tables) Installed(context.Context) error {
	_, err := n.program()
	return err
}

func (n *Tables) program() (string, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return "", fmt.Errorf("%w: nft is not installed", netfilter.ErrUnusable)
	}
	return path, nil
}

// script is a transaction under way.
type script struct {
	lines []string
}

func (s *script) add(format string, a ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, a...))
}

// table makes a table. The comment is for people; kernels before 5.10 have none.
func (s *script) table(family, name, comment string) {
	s.add("add table %s %s { comment %q ; }", family, name, comment)
}

// only makes a chain with these rules and no others. It replaces what was there.
func (s *script) only(family, table, chain, base string, rules ...string) {
	if base != "" {
		base = " { type " + base + " ; }"
	}
	s.add("add chain %s %s %s%s", family, table, chain, base)
	s.add("flush chain %s %s %s", family, table, chain)
	for _, r := range rules {
		s.add("add rule %s %s %s %s", family, table, chain, r)
	}
}

func (s *script) drop(r rule) {
	s.add("delete rule %s %s %s handle %d", r.Family, r.Table, r.Chain, r.Handle)
}

// rule is a rule as nft -j lists it.
type rule struct {
	Family, Table, Chain, Comment string
	Handle                        int
	Expr                          json.RawMessage
}

// mentions reports that a value of the rule is the string.
func (r rule) mentions(value string) bool { return strings.Contains(string(r.Expr), `"`+value+`"`) }

// list is the part of libnftables-json(5) that is read.
type list struct {
	Objects []struct {
		Chain *struct{ Family, Table, Name string }
		Rule  *rule
		Set   *set
	} `json:"nftables"`
}

// set is a set with its elements, each a value or an object around one.
type set struct {
	Family, Table, Name string
	Elem                []json.RawMessage
}

// edit changes a table in one transaction: plan sees the table (empty if there
// is none) and writes what has to happen. When another process changed it
// in between, all of it is done again. The caller holds the lock.
func (n *Tables) edit(ctx context.Context, tables []tableName, plan func(list) script) error {
	path, err := n.program()
	if err != nil {
		return err
	}
	var last error
	for range tool.Attempts {
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
		var failed *tool.Error
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
	return fmt.Errorf("%w: nftables changed %d times: %w", netfilter.ErrBusy, tool.Attempts, last)
}

// apply runs a script. Where the kernel knows no comments on tables it is run
// again without them.
func (n *Tables) apply(ctx context.Context, path string, s script) error {
	_, err := n.env.Run(ctx, strings.Join(s.lines, "\n")+"\n", path, "-f", "-")
	var failed *tool.Error
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
	if _, again := n.env.Run(ctx, strings.Join(plain, "\n")+"\n", path, "-f", "-"); again != nil {
		return err
	}
	return nil
}

// tableName names a table by its family and a chain in it that tells that it is
// there.
type tableName struct{ family, table, chain string }

func (t tableName) number() int {
	switch t.family {
	case "ip":
		return unix.NFPROTO_IPV4
	case "ip6":
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_INET
}

// list reads the tables that are there.
func (n *Tables) list(ctx context.Context, path string, tables []tableName) (list, error) {
	var all list
	for _, t := range tables {
		if there, err := n.env.HasNFTChain(t.number(), t.table, t.chain); err == nil && !there {
			continue
		}
		out, err := n.env.Run(ctx, "", path, "-j", "list", "table", t.family, t.table)
		if err != nil {
			if there, kerr := n.env.HasNFTChain(t.number(), t.table, t.chain); kerr == nil && !there {
				continue // went between the two looks
			}
			return all, fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
		}
		var l list
		if err := json.Unmarshal([]byte(out), &l); err != nil {
			return all, fmt.Errorf("%w: decode the output of nft: %w", netfilter.ErrUnusable, err)
		}
		if err := l.compact(); err != nil {
			return all, fmt.Errorf("%w: decode the output of nft: %w", netfilter.ErrUnusable, err)
		}
		all.Objects = append(all.Objects, l.Objects...)
	}
	return all, nil
}

// compact takes the white space out of expressions, so that they can be searched
// whatever nft's release writes.
func (l list) compact() error {
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
func (l list) rules(chain string) []rule {
	var out []rule
	for _, o := range l.Objects {
		if o.Rule != nil && o.Rule.Chain == chain {
			out = append(out, *o.Rule)
		}
	}
	return out
}

// set returns a set, without elements if there is none.
func (l list) set(name string) set {
	for _, o := range l.Objects {
		if o.Set != nil && o.Set.Name == name {
			return *o.Set
		}
	}
	return set{}
}

func sameList(a, b list) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// remove edits tables if one of them is there, else it does nothing at all.
func (n *Tables) remove(ctx context.Context, tables []tableName, plan func(list) script) error {
	if err := n.env.Idle(ctx); err != nil {
		return err
	}
	there := false
	for _, t := range tables {
		has, err := n.env.HasNFTChain(t.number(), t.table, t.chain)
		there = there || has || err != nil
	}
	if !there {
		return nil
	}
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, tables, plan)
}

func familyName(v6 bool) string {
	if v6 {
		return "ip6"
	}
	return "ip"
}
