// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// allTables are the tables of nftables that hold something of attachments.
func allTables() []tableName {
	return slices.Concat(portTables(), masqTables(), firewallTables(), guardTables())
}

// seen are the rules and elements of a netfilter.RuleSet.
type seen struct {
	hash  string // of the comments: hashes of network, interface and container
	rules []rule
	elems []element
}

// element is an element of a set, as nft writes it.
type element struct{ family, table, set, value string }

// Hashed reports that the comments have an attachment's hash.
func (s seen) Hashed() bool { return s.hash != "" }

// HashOf reports that it is the attachment's.
func (s seen) HashOf(ref attachments.ID) bool { return s.hash == attachmentHash(ref) }

// found is a rule set while the tables are searched.
type found struct {
	netfilter.RuleSet
	seen seen
}

// RuleSets reads Sluice's tables and upstream's.
func (n *Tables) RuleSets(ctx context.Context) ([]netfilter.RuleSet, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // then no plugin of this node made any
	}
	have, err := n.list(ctx, path, allTables())
	if err != nil {
		return nil, err
	}
	var out []netfilter.RuleSet
	for _, f := range slices.Concat(portSets(have), masqSets(have), firewallSets(have)) {
		f.Backend, f.Seen = n.Name(), f.seen
		out = append(out, f.RuleSet)
	}
	return out, nil
}

// portSets are the ports of one address of one container. A rule without a
// comment says nothing of its owner.
func portSets(have list) []found {
	var out []found
	at := make(map[string]int)
	for _, chain := range []string{chainHostPorts, chainHostIPPorts, chainMasquerading} {
		for _, r := range have.rules(chain) {
			pod := r.pod()
			if r.Table != portTable || r.Comment == "" || !pod.IsValid() {
				continue
			}
			key := r.Comment + " " + pod.String()
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key] = i
				out = append(out, found{RuleSet: netfilter.RuleSet{
					Kind:        netfilter.KindPorts,
					What:        fmt.Sprintf("ports of %s in the table %s %s (nftables)", pod, r.Family, r.Table),
					ContainerID: r.Comment, Addrs: []netip.Addr{pod},
				}})
			}
			out[i].seen.rules = append(out[i].seen.rules, r)
		}
	}
	return out
}

// pod is the address that a rule of portmap leads to, or masquerades for.
func (r rule) pod() netip.Addr {
	var expr []struct {
		DNAT *struct {
			Addr json.RawMessage
		}
		Match *struct {
			Left struct {
				Payload *struct{ Field string }
			}
			Right json.RawMessage
		}
	}
	if json.Unmarshal(r.Expr, &expr) != nil {
		return netip.Addr{}
	}
	var pod netip.Addr
	for _, e := range expr {
		switch {
		case e.DNAT != nil:
			return addrIn(e.DNAT.Addr)
		case r.Chain == chainMasquerading && e.Match != nil && e.Match.Left.Payload != nil && e.Match.Left.Payload.Field == "daddr":
			pod = addrIn(e.Match.Right)
		}
	}
	return pod
}

func addrIn(raw json.RawMessage) netip.Addr {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(s) // invalid when it is something else
	return a
}

// named fills in what a comment of commentOf's form says.
func (f *found) named(note string) bool {
	id, rest, ok := strings.Cut(note, ", net: ")
	if !ok || len(id) != 2*hashChars+1 {
		return false
	}
	f.seen.hash = id
	if len(note) >= commentLen { // it may be cut
		return true
	}
	network, rest, ok := strings.Cut(rest, ", if: ")
	ifname, container, ok2 := strings.Cut(rest, ", id: ")
	if ok && ok2 {
		f.Network, f.IfName, f.ContainerID = network, ifname, container
	}
	return true
}

// masqSets are the masquerading of attachments.
func masqSets(have list) []found {
	var out []found
	at := make(map[string]int)
	for _, r := range have.rules(masqChain) {
		var f found
		if r.Table != masqTable || !f.named(r.Comment) {
			continue
		}
		i, ok := at[f.seen.hash]
		if !ok {
			i = len(out)
			at[f.seen.hash] = i
			f.Kind, f.What = netfilter.KindMasquerade, fmt.Sprintf("masquerading in the table %s %s (nftables)", r.Family, r.Table)
			out = append(out, f)
		}
		out[i].seen.rules = append(out[i].seen.rules, r)
		out[i].Addrs = append(out[i].Addrs, r.sources()...)
	}
	return out
}

// sources are the addresses that a rule compares the source with.
func (r rule) sources() []netip.Addr {
	var expr []struct {
		Match *struct {
			Left struct {
				Payload *struct{ Field string }
			}
			Right json.RawMessage
		}
	}
	if json.Unmarshal(r.Expr, &expr) != nil {
		return nil
	}
	var out []netip.Addr
	for _, e := range expr {
		if e.Match == nil || e.Match.Left.Payload == nil || e.Match.Left.Payload.Field != "saddr" {
			continue
		}
		if a := addrIn(e.Match.Right); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// firewallSets are the elements of the sets of Sluice's own tables.
func firewallSets(have list) []found {
	var out []found
	const of = "inet " + firewallTable + " (nftables)"
	for _, v6 := range []bool{false, true} {
		elems := have.set(podSet(v6)).comments()
		for _, value := range slices.Sorted(maps.Keys(elems)) {
			f := found{
				netfilter.RuleSet{Kind: netfilter.KindAdmission, What: fmt.Sprintf("admission of %s in the table %s", value, of)},
				seen{elems: []element{{"inet", firewallTable, podSet(v6), value}}},
			}
			a, err := netip.ParseAddr(value)
			if err != nil || !f.named(elems[value]) {
				continue // the administrator's
			}
			f.Addrs = []netip.Addr{a}
			out = append(out, f)
		}
	}
	for _, bridge := range slices.Sorted(maps.Keys(have.set(setBridges).comments())) {
		f := found{RuleSet: netfilter.RuleSet{Kind: netfilter.KindIsolation, What: fmt.Sprintf("isolation of the bridge %s in the table %s", bridge, of), Device: bridge}}
		pair := fmt.Sprintf("%s . %s", bridge, bridge)
		for _, set := range []struct{ name, value, written string }{
			{setBridges, bridge, fmt.Sprintf("%q", bridge)},
			{setSame, pair, fmt.Sprintf("%q . %q", bridge, bridge)},
			{setIsolated, pair, fmt.Sprintf("%q . %q", bridge, bridge)},
		} {
			if _, there := have.set(set.name).comments()[set.value]; there {
				f.seen.elems = append(f.seen.elems, element{"inet", firewallTable, set.name, set.written})
			}
		}
		out = append(out, f)
	}
	for _, dev := range slices.Sorted(maps.Keys(have.set(setGuarded).comments())) {
		out = append(out, found{
			netfilter.RuleSet{Kind: netfilter.KindGuard, What: fmt.Sprintf("guard of 127.0.0.0/8 against %s in the table ip %s (nftables)", dev, guardTable), Device: dev},
			seen{elems: []element{{"ip", guardTable, setGuarded, fmt.Sprintf("%q", dev)}}},
		})
	}
	return out
}

// RemoveRuleSets removes what RuleSets returned, of these tables alone, in one
// transaction. What has changed since then is in use again and stays.
func (n *Tables) RemoveRuleSets(ctx context.Context, sets []netfilter.RuleSet) error {
	var here []seen
	for _, rs := range sets {
		if x, ok := rs.Seen.(seen); ok {
			here = append(here, x)
		}
	}
	if len(here) == 0 {
		return nil
	}
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, allTables(), func(have list) script {
		s := script{}
		for _, x := range here {
			for _, r := range x.rules {
				if slices.ContainsFunc(have.rules(r.Chain), r.same) {
					s.drop(r)
				}
			}
			for _, e := range x.elems {
				value := strings.ReplaceAll(e.value, `"`, "")
				if note, there := have.set(e.set).comments()[value]; there && (x.hash == "" || strings.HasPrefix(note, x.hash)) {
					s.add("delete element %s %s %s { %s }", e.family, e.table, e.set, e.value)
				}
			}
		}
		return s
	})
}

func (r rule) same(o rule) bool {
	return r.Family == o.Family && r.Table == o.Table && r.Handle == o.Handle && r.Comment == o.Comment && string(r.Expr) == string(o.Expr)
}
