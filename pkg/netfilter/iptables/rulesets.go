// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// seen are the rules of a netfilter.RuleSet.
type seen struct {
	v6    bool
	table string
	chain string   // the attachment's own, or the shared one
	own   bool     // chain goes with what leads to it
	rules []string // of the chain; of a shared chain those that go
}

// Hashed reports that the rules are a chain with an attachment's name.
func (s seen) Hashed() bool { return s.own }

// HashOf reports that the chain's name is the attachment's.
func (s seen) HashOf(ref attachments.ID) bool {
	return s.chain == dnatChain(ref) || s.chain == secondDNATChain(ref) || s.chain == masqChain(ref) || s.chain == oldSNATChain(ref)
}

// found is a rule set while a table is searched.
type found struct {
	netfilter.RuleSet
	seen seen
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// RuleSets reads the tables that can have something of CNI plugins. The error
// names what could not be read; the list holds the rest.
func (t *Tables) RuleSets(ctx context.Context) ([]netfilter.RuleSet, error) {
	var out []netfilter.RuleSet
	var errs []error
	for _, v6 := range []bool{false, true} {
		for _, look := range []struct {
			table  string
			chains []string
			find   func(table) []found
		}{
			{"nat", []string{chainDNAT, "POSTROUTING"}, natSets},
			{"filter", []string{chainForward, chainStage1}, filterSets},
			{"mangle", []string{"PREROUTING"}, guardSets},
		} {
			if !t.mayHave(v6, look.table, look.chains...) {
				continue
			}
			have, err := t.read(ctx, v6, look.table)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, f := range look.find(have) {
				f.seen.v6, f.seen.table = v6, look.table
				f.Backend, f.Seen = t.Name(), f.seen
				f.What = fmt.Sprintf("%s of the table %s (%s, %s)", f.What, look.table, t.Name(), familyName(v6))
				out = append(out, f.RuleSet)
			}
		}
	}
	return out, errors.Join(errs...)
}

// isOwnChain reports that a chain has the name of an attachment's own.
func isOwnChain(name string) bool {
	if len(name) != netfilter.ChainNameLen {
		return false
	}
	for _, prefix := range []string{"CNI-DN-", "CNI-SN-", "CNI-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return strings.Trim(rest, "0123456789abcdef") == ""
		}
	}
	return false
}

// natSets are the chains of attachments. A chain is a third party's if its rules
// name an attachment whose chain has another name.
func natSets(have table) []found {
	var out []found
	for _, chain := range sortedChains(have) {
		if !isOwnChain(chain) {
			continue
		}
		kind := netfilter.KindMasquerade
		if strings.HasPrefix(chain, "CNI-DN-") || strings.HasPrefix(chain, "CNI-SN-") {
			kind = netfilter.KindPorts
		}
		f := found{netfilter.RuleSet{Kind: kind, What: "chain " + chain}, seen{chain: chain, own: true, rules: have.chains[chain]}}
		about := slices.Clone(f.seen.rules)
		for _, from := range []string{chainDNAT, "POSTROUTING"} {
			about = append(about, have.find(from, "-j "+chain)...)
		}
		for _, r := range about {
			if ref, ok := namesIn(comment(r)); ok {
				f.Network, f.ContainerID, f.IfName = ref.Network, ref.ContainerID, ref.IfName
			}
			for _, a := range podAddrs(r) {
				if !slices.Contains(f.Addrs, a) {
					f.Addrs = append(f.Addrs, a)
				}
			}
		}
		if ref := (attachments.ID{Network: f.Network, ContainerID: f.ContainerID, IfName: f.IfName}); f.ContainerID != "" && !f.seen.HashOf(ref) {
			continue
		}
		out = append(out, f)
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
// or what it masquerades.
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

// filterSets are the admissions of addresses and the isolation of bridges.
func filterSets(have table) []found {
	var out []found
	at := make(map[string]int)
	add := func(chain, key string, rs netfilter.RuleSet, rule string) {
		i, ok := at[chain+" "+key]
		if !ok {
			i = len(out)
			at[chain+" "+key] = i
			out = append(out, found{rs, seen{chain: chain}})
		}
		out[i].seen.rules = append(out[i].seen.rules, rule)
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
		add(chainForward, w[1], netfilter.RuleSet{Kind: netfilter.KindAdmission, What: fmt.Sprintf("rules for %s in the chain %s", p.Addr(), chainForward), Addrs: []netip.Addr{p.Addr()}}, r)
	}
	for _, chain := range []string{chainStage1, chainStage2} {
		for _, r := range have.chains[chain] {
			w := words(r)
			if len(w) < 2 || w[0] != "-i" && w[0] != "-o" || !ofBridge(r, w[1]) {
				continue
			}
			add(chain, w[1], netfilter.RuleSet{Kind: netfilter.KindIsolation, What: fmt.Sprintf("isolation of the bridge %s in the chain %s", w[1], chain), Device: w[1]}, r)
		}
	}
	return out
}

// guardSets keep a device's neighbours off 127.0.0.0/8.
func guardSets(have table) []found {
	var out []found
	for _, r := range have.chains["PREROUTING"] {
		if name, ok := strings.CutPrefix(comment(r), guardComment("")); ok && sameRule(r, guardRule(name)) {
			out = append(out, found{
				netfilter.RuleSet{Kind: netfilter.KindGuard, What: "guard of 127.0.0.0/8 against " + name, Device: name},
				seen{chain: "PREROUTING", rules: []string{r}},
			})
		}
	}
	return out
}

// RemoveRuleSets removes what RuleSets returned, of these tables alone, in a
// transaction for each table. What has changed since then is in use again and
// stays.
func (t *Tables) RemoveRuleSets(ctx context.Context, sets []netfilter.RuleSet) error {
	type place struct {
		v6    bool
		table string
	}
	here := make(map[place][]seen)
	for _, rs := range sets {
		if x, ok := rs.Seen.(seen); ok && rs.Backend == t.Name() {
			at := place{x.v6, x.table}
			here[at] = append(here[at], x)
		}
	}
	if len(here) == 0 {
		return nil
	}
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for at, all := range here {
		errs = append(errs, t.edit(ctx, at.v6, at.table, func(have table) (script, error) {
			var s script
			for _, x := range all {
				x.remove(&s, have)
			}
			return s, nil
		}))
	}
	return errors.Join(errs...)
}

func (s seen) remove(into *script, have table) {
	if s.own {
		if slices.Equal(have.chains[s.chain], s.rules) {
			into.dropChain(have, s.chain)
		}
		return
	}
	for _, r := range s.rules {
		if slices.Contains(have.chains[s.chain], r) {
			into.add("-D %s %s", s.chain, r)
		}
	}
}
