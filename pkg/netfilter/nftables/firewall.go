// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Upstream's firewall plugin has no nftables backend, so the table has a
// name of its own. Addresses and bridges are elements of sets, which cost the same
// however many pods there are.
const (
	firewallTable = "sluice_firewall"

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

func firewallTables() []tableName { return []tableName{{"inet", firewallTable, "forward"}} }

// AddFirewall admits the addresses and isolates the bridge, in one transaction.
// This table accepts admitted packets and gives them the mark, which FORWARD of
// iptables accepts. The table of a third party may still drop them.
func (n *Tables) AddFirewall(ctx context.Context, f netfilter.Firewall) error {
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = n.edit(ctx, firewallTables(), func(have list) script {
		s := script{}
		planFirewall(&s, f, n.env.Mark, have)
		for _, a := range f.Addrs {
			set := podSet(a.Addr().Is6())
			if _, there := have.set(set).comments()[a.Addr().String()]; there {
				s.add("delete element inet %s %s { %s }", firewallTable, set, a.Addr()) // it is this attachment's now
			}
			s.add("add element inet %s %s { %s comment %q }", firewallTable, set, a.Addr(), commentOf(f.Ref))
		}
		if f.Isolates() {
			s.add("add element inet %s %s { %q }", firewallTable, setBridges, f.Bridge)
			s.add("add element inet %s %s { %q . %q }", firewallTable, setSame, f.Bridge, f.Bridge)
		}
		if f.Policy == netfilter.PolicyIsolated {
			s.add("add element inet %s %s { %q . %q }", firewallTable, setIsolated, f.Bridge, f.Bridge)
		}
		return s
	})
	if err != nil {
		return err
	}
	return n.acceptInForward(ctx, f)
}

// planFirewall writes the table. Its chain comes before those of iptables
// (priority 0), so that a rule there can look for the mark. The admin chain is
// the administrator's, and it is called first.
func planFirewall(s *script, f netfilter.Firewall, bits uint32, have list) {
	t := firewallTable
	s.table("inet", t, "Sluice firewall plugin")
	s.add("add chain inet %s %s", t, f.AdminChainName())
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
	admins := []string{f.AdminChainName()}
	for _, r := range have.rules("forward") { // another network may have another admin chain
		if c := r.jump(); c != "" && !slices.Contains(admins, c) {
			admins = append(admins, c)
		}
	}
	for _, c := range admins {
		rules = append(rules, "jump "+c)
	}
	for _, v6 := range []bool{false, true} {
		ip := familyName(v6)
		rules = append(rules,
			fmt.Sprintf("ct state established,related %s daddr @%s %saccept", ip, podSet(v6), mark),
			fmt.Sprintf("%s saddr @%s %saccept", ip, podSet(v6), mark))
	}
	s.only("inet", t, "forward", "filter hook forward priority -5", rules...)
}

// jump returns where a rule jumps, empty if it does not.
func (r rule) jump() string {
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
func (s set) comments() map[string]string {
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
// become those of another holder where there is one, and the isolation of a bridge that is named.
func (n *Tables) DelFirewall(ctx context.Context, w netfilter.Withdrawal) error {
	return n.remove(ctx, firewallTables(), func(have list) script {
		s := script{}
		for _, v6 := range []bool{false, true} {
			for value, note := range have.set(podSet(v6)).comments() {
				if !strings.HasPrefix(note, attachmentHash(w.Ref)) {
					continue
				}
				s.add("delete element inet %s %s { %s }", firewallTable, podSet(v6), value)
				if a, err := netip.ParseAddr(value); err == nil {
					if holder, ok := w.AlsoHeldBy[a]; ok {
						s.add("add element inet %s %s { %s comment %q }", firewallTable, podSet(v6), a, commentOf(holder))
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
				s.add("delete element inet %s %s { %s }", firewallTable, set, quoteParts(value))
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

// AdmitsOthers is false: upstream has no such table.
func (*Tables) AdmitsOthers(context.Context, func(netip.Addr) bool) (bool, error) { return false, nil }

// CheckFirewall compares the sets and the chain with what AddFirewall made.
func (n *Tables) CheckFirewall(ctx context.Context, f netfilter.Firewall) error {
	path, err := n.program()
	if err != nil {
		return err
	}
	have, err := n.list(ctx, path, firewallTables())
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range f.Addrs {
		if !strings.HasPrefix(have.set(podSet(a.Addr().Is6())).comments()[a.Addr().String()], attachmentHash(f.Ref)) {
			errs = append(errs, fmt.Errorf("%w: %s is not admitted", netfilter.ErrDiffers, a.Addr()))
		}
	}
	need := map[string]string{}
	pair := f.Bridge + " . " + f.Bridge
	if f.Isolates() {
		need[setBridges], need[setSame] = f.Bridge, pair
	}
	if f.Policy == netfilter.PolicyIsolated {
		need[setIsolated] = pair
	}
	for set, value := range need {
		if _, there := have.set(set).comments()[value]; !there {
			errs = append(errs, fmt.Errorf("%w: the set %s lacks %s", netfilter.ErrDiffers, set, value))
		}
	}
	forward := have.rules("forward")
	for _, v6 := range netfilter.Families(f.Addrs) {
		if !slices.ContainsFunc(forward, func(r rule) bool { return r.mentions("@" + podSet(v6)) }) {
			errs = append(errs, fmt.Errorf("%w: nothing in forward accepts the set %s", netfilter.ErrDiffers, podSet(v6)))
		}
	}
	if !slices.ContainsFunc(forward, func(r rule) bool { return r.jump() == f.AdminChainName() }) {
		errs = append(errs, fmt.Errorf("%w: nothing in forward leads to %s", netfilter.ErrDiffers, f.AdminChainName()))
	}
	return errors.Join(append(errs, n.checkForward(ctx, f))...)
}
