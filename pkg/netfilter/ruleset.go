// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// RuleSet is something that an attachment, of Sluice or of upstream's plugins, has
// in the tables: a chain of its own with what leads to it, or rules in a shared
// chain. It says as much of its owner as the tables do.
type RuleSet struct {
	Backend string // as records call it
	What    string // for people
	// Network, ContainerID and IfName are what a comment says, empty where none
	// does or it was cut.
	Network, ContainerID, IfName string
	Addrs                        []netip.Addr // pods' addresses in it
	Device                       string       // a device of the node that it is about, instead of an attachment

	v6    bool
	table string   // of iptables
	chain string   // the attachment's own, or the shared one
	own   bool     // chain goes with what leads to it
	rules []string // of the chain, as they were seen; of a shared chain those that go
	id    string   // of nftables' comments: hashes of network, interface and container
	nft   []nftRule
	elem  []nftElement
}

// nftElement is an element of a set, as nft writes it.
type nftElement struct{ family, table, set, value string }

// Named reports whether the trace says whose it is, rather than only which
// addresses or devices it is about.
func (t RuleSet) Named() bool { return t.own || t.id != "" || t.ContainerID != "" }

// Of reports whether the trace bears the attachment's name. Some names leave the
// interface out, and some the network.
func (t RuleSet) Of(ref attachments.ID) bool {
	switch {
	case t.own:
		return t.chain == dnatChain(ref) || t.chain == secondDNATChain(ref) || t.chain == masqChain(ref) || t.chain == oldSNATChain(ref)
	case t.id != "":
		return t.id == nftID(ref)
	}
	return t.ContainerID != "" && t.ContainerID == ref.ContainerID
}

// ByContainer reports that the name is the container's alone, so that traces of
// its attachments to several networks can be told by their addresses only.
func (t RuleSet) ByContainer() bool { return !t.own && t.id == "" && t.ContainerID != "" }

// RuleSets lists what there is in all tables. Nothing is started for tables that
// do not have our chains. The error names what could not be read; the list holds
// the rest.
func (n *Node) RuleSets(ctx context.Context) ([]RuleSet, error) {
	var out []RuleSet
	var errs []error
	for _, t := range n.All() {
		var found []RuleSet
		var err error
		switch t := t.(type) {
		case *IPTables:
			found, err = t.traces(ctx)
		case *NFTables:
			found, err = t.traces(ctx)
		}
		out = append(out, found...)
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// Remove removes traces that Traces returned. What has changed since then is
// somebody's again and stays.
func (n *Node) Remove(ctx context.Context, traces []RuleSet) error {
	if len(traces) == 0 {
		return nil
	}
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, t := range n.All() {
		mine := slices.DeleteFunc(slices.Clone(traces), func(x RuleSet) bool { return x.Backend != t.Name() })
		switch t := t.(type) {
		case *IPTables:
			errs = append(errs, t.removeTraces(ctx, mine))
		case *NFTables:
			errs = append(errs, t.removeTraces(ctx, mine))
		}
	}
	return errors.Join(errs...)
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// traces reads the tables that can have something of ours.
func (t *IPTables) traces(ctx context.Context) ([]RuleSet, error) {
	var out []RuleSet
	var errs []error
	for _, v6 := range []bool{false, true} {
		for _, look := range []struct {
			table  string
			chains []string
			find   func(table) []RuleSet
		}{
			{"nat", []string{chainDNAT, "POSTROUTING"}, natTraces},
			{"filter", []string{chainForward, chainStage1}, filterTraces},
			{"mangle", []string{"PREROUTING"}, guardTraces},
		} {
			if !t.mayHave(v6, look.table, look.chains...) {
				continue
			}
			have, err := t.read(ctx, v6, look.table)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, tr := range look.find(have) {
				tr.Backend, tr.v6, tr.table = t.Name(), v6, look.table
				tr.What = fmt.Sprintf("%s of the table %s (%s, %s)", tr.What, look.table, t.Name(), familyName(v6))
				out = append(out, tr)
			}
		}
	}
	return out, errors.Join(errs...)
}

// isOwnChain reports that a chain has the name of an attachment's own.
func isOwnChain(name string) bool {
	if len(name) != chainNameLen {
		return false
	}
	for _, prefix := range []string{"CNI-DN-", "CNI-SN-", "CNI-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return strings.Trim(rest, "0123456789abcdef") == ""
		}
	}
	return false
}

// natTraces are the chains of attachments. A chain whose rules name somebody
// whose chain has another name is a stranger's.
func natTraces(have table) []RuleSet {
	var out []RuleSet
	for _, chain := range sortedChains(have) {
		if !isOwnChain(chain) {
			continue
		}
		t := RuleSet{What: "chain " + chain, chain: chain, own: true, rules: have.chains[chain]}
		about := slices.Clone(t.rules)
		for _, from := range []string{chainDNAT, "POSTROUTING"} {
			about = append(about, have.find(from, "-j "+chain)...)
		}
		for _, r := range about {
			if ref, ok := namesIn(comment(r)); ok {
				t.Network, t.ContainerID, t.IfName = ref.Network, ref.ContainerID, ref.IfName
			}
			for _, a := range podAddrs(r) {
				if !slices.Contains(t.Addrs, a) {
					t.Addrs = append(t.Addrs, a)
				}
			}
		}
		if ref := (attachments.ID{Network: t.Network, ContainerID: t.ContainerID, IfName: t.IfName}); t.ContainerID != "" && !t.Of(ref) {
			continue
		}
		out = append(out, t)
	}
	return out
}

func sortedChains(have table) []string {
	names := make([]string, 0, len(have.chains))
	for name := range have.chains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// podAddrs are the addresses of pods in a rule of the table nat: where it leads,
// or whom it masquerades.
func podAddrs(rule string) []netip.Addr {
	w := words(rule)
	var out []netip.Addr
	for i, word := range w {
		if i+1 == len(w) {
			break
		}
		switch word {
		case "--to-destination":
			if ap, err := netip.ParseAddrPort(w[i+1]); err == nil {
				out = append(out, ap.Addr())
			}
		case "-s":
			if p, err := netip.ParsePrefix(w[i+1]); err == nil && p.IsSingleIP() && !p.Addr().IsLoopback() {
				out = append(out, p.Addr())
			}
		}
	}
	return out
}

// filterTraces are the admissions of addresses and the isolation of bridges.
func filterTraces(have table) []RuleSet {
	var out []RuleSet
	at := make(map[string]int)
	add := func(chain, key string, t RuleSet, rule string) {
		i, ok := at[chain+" "+key]
		if !ok {
			i = len(out)
			at[chain+" "+key] = i
			t.chain = chain
			out = append(out, t)
		}
		out[i].rules = append(out[i].rules, rule)
	}
	for _, r := range have.chains[chainForward] {
		w := words(r)
		if len(w) < 2 || w[0] != "-s" && w[0] != "-d" {
			continue
		}
		p, err := netip.ParsePrefix(w[1])
		if err != nil || !slices.ContainsFunc(admitRules(p.Addr()), func(want string) bool { return sameRule(r, want) }) {
			continue // the administrator's
		}
		add(chainForward, w[1], RuleSet{What: fmt.Sprintf("rules for %s in the chain %s", p.Addr(), chainForward), Addrs: []netip.Addr{p.Addr()}}, r)
	}
	for _, chain := range []string{chainStage1, chainStage2} {
		for _, r := range have.chains[chain] {
			w := words(r)
			if len(w) < 2 || w[0] != "-i" && w[0] != "-o" || !ofBridge(r, w[1]) {
				continue
			}
			add(chain, w[1], RuleSet{What: fmt.Sprintf("isolation of the bridge %s in the chain %s", w[1], chain), Device: w[1]}, r)
		}
	}
	return out
}

// guardTraces keep a device's neighbours off 127.0.0.0/8.
func guardTraces(have table) []RuleSet {
	var out []RuleSet
	for _, r := range have.chains["PREROUTING"] {
		if name, ok := strings.CutPrefix(comment(r), guardComment("")); ok && sameRule(r, guardRule(name)) {
			out = append(out, RuleSet{What: "guard of 127.0.0.0/8 against " + name, Device: name, chain: "PREROUTING", rules: []string{r}})
		}
	}
	return out
}

// removeTraces removes traces of this variant, a transaction for each table.
func (t *IPTables) removeTraces(ctx context.Context, traces []RuleSet) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			here := slices.DeleteFunc(slices.Clone(traces), func(x RuleSet) bool { return x.v6 != v6 || x.table != name })
			if len(here) == 0 {
				continue
			}
			errs = append(errs, t.edit(ctx, v6, name, func(have table) (script, error) {
				var s script
				for _, x := range here {
					x.remove(&s, have)
				}
				return s, nil
			}))
		}
	}
	return errors.Join(errs...)
}

func (t RuleSet) remove(s *script, have table) {
	if t.own {
		if slices.Equal(have.chains[t.chain], t.rules) {
			s.dropChain(have, t.chain)
		}
		return
	}
	for _, r := range t.rules {
		if slices.Contains(have.chains[t.chain], r) {
			s.add("-D %s %s", t.chain, r)
		}
	}
}
