// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// traceTables are the tables of nftables that hold something of attachments.
func traceTables() []nftName {
	return slices.Concat(nftPortTables(), nftMasqTables(), nftFirewallTables(), nftGuardTables())
}

// traces reads our tables and upstream's.
func (n *NFTables) traces(ctx context.Context) ([]RuleSet, error) {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // then there is nobody who could have made some
	}
	have, err := n.list(ctx, path, traceTables())
	if err != nil {
		return nil, err
	}
	out := slices.Concat(portTraces(have), masqTraces(have), firewallTraces(have))
	for i := range out {
		out[i].Backend = NameNFTables
	}
	return out, nil
}

// portTraces are the ports of one address of one container. A rule without a
// comment is nobody's.
func portTraces(have nftList) []RuleSet {
	var out []RuleSet
	at := make(map[string]int)
	for _, chain := range []string{nftHostPorts, nftHostIPPorts, nftMasquerades} {
		for _, r := range have.rules(chain) {
			pod := r.pod()
			if r.Table != nftPortTable || r.Comment == "" || !pod.IsValid() {
				continue
			}
			key := r.Comment + " " + pod.String()
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key] = i
				out = append(out, RuleSet{
					What:        fmt.Sprintf("ports of %s in the table %s %s (nftables)", pod, r.Family, r.Table),
					ContainerID: r.Comment, Addrs: []netip.Addr{pod},
				})
			}
			out[i].nft = append(out[i].nft, r)
		}
	}
	return out
}

// pod is the address that a rule of portmap leads to, or masquerades for.
func (r nftRule) pod() netip.Addr {
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
		case r.Chain == nftMasquerades && e.Match != nil && e.Match.Left.Payload != nil && e.Match.Left.Payload.Field == "daddr":
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

// named fills in what a comment of nftComment's form says.
func (t *RuleSet) named(note string) bool {
	id, rest, ok := strings.Cut(note, ", net: ")
	if !ok || len(id) != 2*nftIDHashChars+1 {
		return false
	}
	t.id = id
	if len(note) >= nftCommentLen { // it may be cut
		return true
	}
	network, rest, ok := strings.Cut(rest, ", if: ")
	ifname, container, ok2 := strings.Cut(rest, ", id: ")
	if ok && ok2 {
		t.Network, t.IfName, t.ContainerID = network, ifname, container
	}
	return true
}

// masqTraces are the masquerading of attachments.
func masqTraces(have nftList) []RuleSet {
	var out []RuleSet
	at := make(map[string]int)
	for _, r := range have.rules(nftMasqChain) {
		var t RuleSet
		if r.Table != nftMasqTable || !t.named(r.Comment) {
			continue
		}
		i, ok := at[t.id]
		if !ok {
			i = len(out)
			at[t.id] = i
			t.What = fmt.Sprintf("masquerading in the table %s %s (nftables)", r.Family, r.Table)
			out = append(out, t)
		}
		out[i].nft = append(out[i].nft, r)
		out[i].Addrs = append(out[i].Addrs, r.sources()...)
	}
	return out
}

// sources are the addresses that a rule compares the source with.
func (r nftRule) sources() []netip.Addr {
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

// firewallTraces are the elements of our own sets.
func firewallTraces(have nftList) []RuleSet {
	var out []RuleSet
	const of = "inet " + nftFirewallTable + " (nftables)"
	for _, v6 := range []bool{false, true} {
		elems := have.set(podSet(v6)).comments()
		for _, value := range slices.Sorted(maps.Keys(elems)) {
			t := RuleSet{What: fmt.Sprintf("admission of %s in the table %s", value, of), elem: []nftElement{{"inet", nftFirewallTable, podSet(v6), value}}}
			a, err := netip.ParseAddr(value)
			if err != nil || !t.named(elems[value]) {
				continue // the administrator's
			}
			t.Addrs = []netip.Addr{a}
			out = append(out, t)
		}
	}
	for _, bridge := range slices.Sorted(maps.Keys(have.set(setBridges).comments())) {
		t := RuleSet{What: fmt.Sprintf("isolation of the bridge %s in the table %s", bridge, of), Device: bridge}
		pair := fmt.Sprintf("%s . %s", bridge, bridge)
		for _, set := range []struct{ name, value, written string }{
			{setBridges, bridge, fmt.Sprintf("%q", bridge)},
			{setSame, pair, fmt.Sprintf("%q . %q", bridge, bridge)},
			{setIsolated, pair, fmt.Sprintf("%q . %q", bridge, bridge)},
		} {
			if _, there := have.set(set.name).comments()[set.value]; there {
				t.elem = append(t.elem, nftElement{"inet", nftFirewallTable, set.name, set.written})
			}
		}
		out = append(out, t)
	}
	for _, dev := range slices.Sorted(maps.Keys(have.set(setGuarded).comments())) {
		out = append(out, RuleSet{
			What: fmt.Sprintf("guard of 127.0.0.0/8 against %s in the table ip %s (nftables)", dev, nftGuardTable), Device: dev,
			elem: []nftElement{{"ip", nftGuardTable, setGuarded, fmt.Sprintf("%q", dev)}},
		})
	}
	return out
}

// removeTraces removes rules and elements that are there as they were seen, in
// one transaction.
func (n *NFTables) removeTraces(ctx context.Context, traces []RuleSet) error {
	if len(traces) == 0 {
		return nil
	}
	return n.edit(ctx, traceTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, t := range traces {
			for _, seen := range t.nft {
				if slices.ContainsFunc(have.rules(seen.Chain), seen.same) {
					s.drop(seen)
				}
			}
			for _, e := range t.elem {
				value := strings.ReplaceAll(e.value, `"`, "")
				if note, there := have.set(e.set).comments()[value]; there && (t.id == "" || strings.HasPrefix(note, t.id)) {
					s.add("delete element %s %s %s { %s }", e.family, e.table, e.set, e.value)
				}
			}
		}
		return s
	})
}

func (r nftRule) same(o nftRule) bool {
	return r.Family == o.Family && r.Table == o.Table && r.Handle == o.Handle && r.Comment == o.Comment && string(r.Expr) == string(o.Expr)
}
