// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// AddFirewall admits the addresses and isolates the bridge.
func (t *Tables) AddFirewall(ctx context.Context, f netfilter.Firewall) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, v6 := range netfilter.Families(f.Addrs) {
		if err := t.edit(ctx, v6, "filter", func(have table) (script, error) { return planFirewall(f, v6, have), nil }); err != nil {
			return err
		}
	}
	return nil
}

// planFirewall appends the rules of the addresses; what leads there is put first
// in FORWARD, and the isolation before that.
func planFirewall(f netfilter.Firewall, v6 bool, have table) script {
	var s script
	s.ensureChain(have, chainForward)
	admin := f.AdminChainName()
	s.ensureChain(have, admin)
	if len(have.find("FORWARD", "-j "+chainForward)) == 0 {
		s.add("-I FORWARD 1 -m comment --comment %q -j %s", commentFirewall, chainForward)
	}
	if len(have.find(chainForward, "-j "+admin)) == 0 {
		s.add("-I %s 1 -m comment --comment %q -j %s", chainForward, commentAdmin, admin)
	}
	for _, a := range f.Addrs {
		if a.Addr().Is6() != v6 {
			continue
		}
		for _, r := range admitRules(a.Addr()) {
			if !hasRule(have, chainForward, r) {
				s.add("-A %s %s", chainForward, r)
			}
		}
	}
	if f.Isolates() {
		planIsolation(&s, f, have)
	}
	return s
}

func admitRules(a netip.Addr) []string {
	return []string{
		fmt.Sprintf("-d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", host(a)),
		fmt.Sprintf("-s %s -j ACCEPT", host(a)),
	}
}

// planIsolation drops what leaves one isolated bridge for another, and with
// "isolated" also what stays on it (which needs br_netfilter). The rules of
// bridges are put before the RETURN that ends both chains.
func planIsolation(s *script, f netfilter.Firewall, have table) {
	s.ensureChain(have, chainStage1)
	s.ensureChain(have, chainStage2)
	if len(have.find("FORWARD", "-j "+chainStage1)) == 0 {
		s.add("-I FORWARD 1 -m comment --comment %q -j %s", commentIsolate, chainStage1)
	}
	for _, r := range isolationRules(f) {
		if !hasRule(have, r.chain, r.rule) {
			s.add("-I %s 1 %s", r.chain, r.rule)
		}
	}
	for _, c := range []string{chainStage1, chainStage2} {
		if len(have.find(c, "-j RETURN")) == 0 {
			s.add("-A %s -m comment --comment %q -j RETURN", c, commentIsolate)
		}
	}
}

type placedRule struct{ chain, rule string }

// isolationRules are a bridge's rules in the order in which they are inserted.
func isolationRules(f netfilter.Firewall) []placedRule {
	note := fmt.Sprintf("CNI firewall plugin rules (ingressPolicy: %s)", f.Policy)
	rules := []placedRule{{chainStage1, fmt.Sprintf("-i %s ! -o %s -m comment --comment %q -j %s", f.Bridge, f.Bridge, note, chainStage2)}}
	if f.Policy == netfilter.PolicyIsolated {
		rules = append(rules, placedRule{chainStage1, fmt.Sprintf("-i %s -o %s -m comment --comment %q -j DROP", f.Bridge, f.Bridge, note)})
	}
	return append(rules, placedRule{chainStage2, fmt.Sprintf("-o %s -m comment --comment %q -j DROP", f.Bridge, commentIsolate)})
}

// DelFirewall withdraws the admission of addresses, and the isolation of a
// bridge that is named.
func (t *Tables) DelFirewall(ctx context.Context, w netfilter.Withdrawal) error {
	return t.remove(ctx, "filter", func(_ bool, have table) (script, error) {
		var s script
		for _, r := range have.chains[chainForward] {
			if slices.ContainsFunc(w.Addrs, func(a netip.Addr) bool {
				return slices.ContainsFunc(admitRules(a), func(want string) bool { return sameRule(r, want) })
			}) {
				s.add("-D %s %s", chainForward, r)
			}
		}
		if w.Bridge == "" || w.Used() {
			return s, nil
		}
		for _, c := range []string{chainStage1, chainStage2} {
			for _, r := range have.chains[c] {
				if ofBridge(r, w.Bridge) {
					s.add("-D %s %s", c, r)
				}
			}
		}
		return s, nil
	}, chainForward, chainStage1)
}

// ofBridge reports that an isolation rule is about the bridge.
func ofBridge(rule, bridge string) bool {
	return strings.Contains(rule, "(ingressPolicy: ") &&
		(containsAll(rule, []string{"-i " + bridge}) || containsAll(rule, []string{"-o " + bridge}))
}

// AdmitsOthers reports whether addresses are admitted that known does not have:
// pods of the upstream plugins, which keep no record.
func (t *Tables) AdmitsOthers(ctx context.Context, known func(netip.Addr) bool) (bool, error) {
	for _, v6 := range []bool{false, true} {
		if !t.mayHave(v6, "filter", chainForward) {
			continue
		}
		have, err := t.read(ctx, v6, "filter")
		if err != nil {
			return false, err
		}
		for _, r := range have.chains[chainForward] {
			w := words(r)
			if i := slices.Index(w, "-s"); i >= 0 && i+1 < len(w) {
				if p, err := netip.ParsePrefix(w[i+1]); err == nil && !known(p.Addr()) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// CheckFirewall compares the rules, and what leads to them, with what
// AddFirewall made. It changes nothing.
func (t *Tables) CheckFirewall(ctx context.Context, f netfilter.Firewall) error {
	var errs []error
	for _, v6 := range netfilter.Families(f.Addrs) {
		have, err := t.read(ctx, v6, "filter")
		if err != nil {
			return err
		}
		missing := func(chain, rule string) {
			errs = append(errs, fmt.Errorf("%w: missing in %s: %s", netfilter.ErrDiffers, chain, rule))
		}
		jumps := adminJumps(f.AdminChainName())
		if f.Isolates() {
			jumps = append(jumps, [2]string{"FORWARD", chainStage1})
			for _, r := range isolationRules(f) {
				if !hasRule(have, r.chain, r.rule) {
					missing(r.chain, r.rule)
				}
			}
		}
		for _, j := range jumps {
			if len(have.find(j[0], "-j "+j[1])) == 0 {
				missing(j[0], "-j "+j[1])
			}
		}
		for _, a := range f.Addrs {
			for _, r := range admitRules(a.Addr()) {
				if a.Addr().Is6() == v6 && !hasRule(have, chainForward, r) {
					missing(chainForward, r)
				}
			}
		}
	}
	return errors.Join(errs...)
}
