// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Upstream's firewall plugin has no nftables backend, so the table has a
// name of ours. Addresses and bridges are elements of sets, which cost the same
// however many pods there are.
const (
	nftFirewallTable = "sluice_firewall"

	setBridges  = "bridges"  // that isolate
	setSame     = "same"     // pairs of one of those and itself
	setIsolated = "isolated" // pairs that are to be dropped although they are one bridge
)

func podSet(v6 bool) string {
	if v6 {
		return "pods6"
	}
	return "pods4"
}

func nftFirewallTables() []nftName { return []nftName{{"inet", nftFirewallTable, "forward"}} }

// AddFirewall admits the addresses and isolates the bridge, in one transaction.
// Admitted packets get the mark and are accepted by this table; iptables' FORWARD
// accepts the mark, and the table of somebody else may drop them still.
func (n *NFTables) AddFirewall(ctx context.Context, f Firewall) error {
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = n.edit(ctx, nftFirewallTables(), func(have nftList) nftScript {
		s := nftScript{}
		planNFTFirewall(&s, f, n.mark, have)
		for _, a := range f.Addrs {
			set := podSet(a.Addr().Is6())
			if _, there := have.set(set).comments()[a.Addr().String()]; there {
				s.add("delete element inet %s %s { %s }", nftFirewallTable, set, a.Addr()) // whoever had it: it is this attachment's now
			}
			s.add("add element inet %s %s { %s comment %q }", nftFirewallTable, set, a.Addr(), nftComment(f.Ref))
		}
		if f.isolates() {
			s.add("add element inet %s %s { %q }", nftFirewallTable, setBridges, f.Bridge)
			s.add("add element inet %s %s { %q . %q }", nftFirewallTable, setSame, f.Bridge, f.Bridge)
		}
		if f.Policy == PolicyIsolated {
			s.add("add element inet %s %s { %q . %q }", nftFirewallTable, setIsolated, f.Bridge, f.Bridge)
		}
		return s
	})
	if err != nil {
		return err
	}
	return n.acceptInForward(ctx, f)
}

// planNFTFirewall writes the table. Its chain comes before those of iptables
// (priority 0), so that a rule there can look for the mark. The admin chain is
// the administrator's, and it is called first.
func planNFTFirewall(s *nftScript, f Firewall, bits uint32, have nftList) {
	t := nftFirewallTable
	s.table("inet", t, "Sluice firewall plugin")
	s.add("add chain inet %s %s", t, f.adminChain())
	s.add("add set inet %s %s { type ipv4_addr ; }", t, podSet(false))
	s.add("add set inet %s %s { type ipv6_addr ; }", t, podSet(true))
	s.add("add set inet %s %s { type ifname ; }", t, setBridges)
	s.add("add set inet %s %s { type ifname . ifname ; }", t, setSame)
	s.add("add set inet %s %s { type ifname . ifname ; }", t, setIsolated)
	mark := ""
	if bits != 0 {
		mark = fmt.Sprintf("meta mark set meta mark or %#x ", bits)
	}
	rules := []string{
		"iifname . oifname @" + setIsolated + " drop",
		"iifname @" + setBridges + " oifname @" + setBridges + " iifname . oifname != @" + setSame + " drop",
	}
	admins := []string{f.adminChain()}
	for _, r := range have.rules("forward") { // another network may have another admin chain
		if c := r.jump(); c != "" && !slices.Contains(admins, c) {
			admins = append(admins, c)
		}
	}
	for _, c := range admins {
		rules = append(rules, "jump "+c)
	}
	for _, v6 := range []bool{false, true} {
		ip := nftFamily(v6)
		rules = append(rules,
			fmt.Sprintf("ct state established,related %s daddr @%s %saccept", ip, podSet(v6), mark),
			fmt.Sprintf("%s saddr @%s %saccept", ip, podSet(v6), mark))
	}
	s.only("inet", t, "forward", "filter hook forward priority -5", rules...)
}

// jump returns where a rule jumps, empty if it does not.
func (r nftRule) jump() string {
	var expr []struct {
		Jump *struct{ Target string }
	}
	if json.Unmarshal(r.Expr, &expr) == nil {
		for _, e := range expr {
			if e.Jump != nil {
				return e.Jump.Target
			}
		}
	}
	return ""
}

// comments returns the comments of the elements, by value.
func (s nftSet) comments() map[string]string {
	out := make(map[string]string, len(s.Elem))
	for _, raw := range s.Elem {
		var plain string
		if json.Unmarshal(raw, &plain) == nil {
			out[plain] = ""
			continue
		}
		var e struct {
			Elem struct {
				Val     json.RawMessage
				Comment string
			}
			Concat []string
		}
		if json.Unmarshal(raw, &e) != nil {
			continue
		}
		switch {
		case len(e.Concat) > 0:
			out[strings.Join(e.Concat, " . ")] = ""
		case json.Unmarshal(e.Elem.Val, &plain) == nil:
			out[plain] = e.Elem.Comment
		}
	}
	return out
}

// DelFirewall withdraws what the attachment has: the elements with its id, which
// become an heir's where there is one, and the isolation of a bridge that is named.
func (n *NFTables) DelFirewall(ctx context.Context, w Withdrawal) error {
	return n.remove(ctx, nftFirewallTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, v6 := range []bool{false, true} {
			for value, note := range have.set(podSet(v6)).comments() {
				if !strings.HasPrefix(note, nftID(w.Ref)) {
					continue
				}
				s.add("delete element inet %s %s { %s }", nftFirewallTable, podSet(v6), value)
				if a, err := netip.ParseAddr(value); err == nil {
					if heir, ok := w.Heirs[a]; ok {
						s.add("add element inet %s %s { %s comment %q }", nftFirewallTable, podSet(v6), a, nftComment(heir))
					}
				}
			}
		}
		if w.Bridge == "" || w.Used() {
			return s
		}
		pair := w.Bridge + " . " + w.Bridge
		for set, value := range map[string]string{setBridges: w.Bridge, setSame: pair, setIsolated: pair} {
			if _, there := have.set(set).comments()[value]; there {
				s.add("delete element inet %s %s { %s }", nftFirewallTable, set, quoteParts(value))
			}
		}
		return s
	})
}

func quoteParts(value string) string {
	parts := strings.Split(value, " . ")
	for i := range parts {
		parts[i] = fmt.Sprintf("%q", parts[i])
	}
	return strings.Join(parts, " . ")
}

// Strangers is false: nobody else writes this table.
func (*NFTables) Strangers(context.Context, func(netip.Addr) bool) (bool, error) { return false, nil }

// CheckFirewall compares the sets and the chain with what AddFirewall made.
func (n *NFTables) CheckFirewall(ctx context.Context, f Firewall) error {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return fmt.Errorf("%w: nft is not installed", ErrUnusable)
	}
	have, err := n.list(ctx, path, nftFirewallTables())
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range f.Addrs {
		if !strings.HasPrefix(have.set(podSet(a.Addr().Is6())).comments()[a.Addr().String()], nftID(f.Ref)) {
			errs = append(errs, fmt.Errorf("%w: %s is not admitted", ErrDiffers, a.Addr()))
		}
	}
	need := map[string]string{}
	pair := f.Bridge + " . " + f.Bridge
	if f.isolates() {
		need[setBridges], need[setSame] = f.Bridge, pair
	}
	if f.Policy == PolicyIsolated {
		need[setIsolated] = pair
	}
	for set, value := range need {
		if _, there := have.set(set).comments()[value]; !there {
			errs = append(errs, fmt.Errorf("%w: the set %s lacks %s", ErrDiffers, set, value))
		}
	}
	forward := have.rules("forward")
	for _, v6 := range families(f.Addrs) {
		if !slices.ContainsFunc(forward, func(r nftRule) bool { return r.mentions("@" + podSet(v6)) }) {
			errs = append(errs, fmt.Errorf("%w: nothing in forward accepts the set %s", ErrDiffers, podSet(v6)))
		}
	}
	if !slices.ContainsFunc(forward, func(r nftRule) bool { return r.jump() == f.adminChain() }) {
		errs = append(errs, fmt.Errorf("%w: nothing in forward leads to %s", ErrDiffers, f.adminChain()))
	}
	return errors.Join(append(errs, n.checkForward(ctx, f))...)
}

// SweepFirewall withdraws the admission of a network's attachments that are not
// in keep.
func (n *NFTables) SweepFirewall(ctx context.Context, network string, keep func(id string) bool) error {
	return n.remove(ctx, nftFirewallTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, v6 := range []bool{false, true} {
			for value, note := range have.set(podSet(v6)).comments() {
				if id, _, _ := strings.Cut(note, ","); strings.HasPrefix(note, nftNetwork(network)+"-") && !keep(id) {
					s.add("delete element inet %s %s { %s }", nftFirewallTable, podSet(v6), value)
				}
			}
		}
		return s
	})
}
