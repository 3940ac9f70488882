// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Chains of the table cni_hostport.
const (
	chainHostPorts    = "hostports"
	chainHostIPPorts  = "hostip_hostports"
	chainAllPorts     = "hostports_all"
	chainMasquerading = "masquerading"
)

func portTables() []tableName {
	return []tableName{{"ip", portTable, chainHostPorts}, {"ip6", portTable, chainHostPorts}}
}

// AddPorts publishes ports in one transaction. A repeated ADD replaces what the
// first one made.
func (n *Tables) AddPorts(ctx context.Context, p netfilter.Ports) error {
	if p.MarkChain != "" {
		return fmt.Errorf("chain %s: %w: nftables has no chain that sets a mark for others", p.MarkChain, netfilter.ErrNoChain)
	}
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, portTables(), func(have list) script {
		s := script{}
		gone := portRules(have, netfilter.Held{Ref: p.Ref, Mappings: slices.Concat(p.Mappings, p.Before), Spare: spareOthers(p)})
		for _, r := range gone {
			s.drop(r)
		}
		for _, v6 := range []bool{false, true} {
			if m := netfilter.OfFamily(p.Mappings, v6); len(m) > 0 {
				planPorts(&s, p, m, v6, func(m netfilter.Mapping) int { return keptBy(have, p, m, gone) })
			}
		}
		return s
	})
}

// planPorts writes the shared chains and the attachment's rules. Conditions
// are part of a mapping's own rule: in the shared chains, where upstream
// has them, they would be those of all attachments. behind returns the handle of the
// rule that a mapping's rule has to follow, 0 for none.
func planPorts(s *script, p netfilter.Ports, mappings []netfilter.Mapping, v6 bool, behind func(netfilter.Mapping) int) {
	family := familyName(v6)
	s.table(family, portTable, "CNI portmap plugin")
	s.add("add chain %s %s %s", family, portTable, chainHostPorts)
	s.add("add chain %s %s %s", family, portTable, chainHostIPPorts)
	s.only(family, portTable, chainAllPorts, "", "jump "+chainHostIPPorts, "jump "+chainHostPorts)
	local := "fib daddr type local jump " + chainAllPorts
	s.only(family, portTable, "prerouting", "nat hook prerouting priority -100", local)
	s.only(family, portTable, "output", "nat hook output priority -100", local)
	if p.SNAT {
		s.add("add chain %s %s %s { type nat hook postrouting priority 100 ; }", family, portTable, chainMasquerading)
	}
	// Each rule is put first: the last ADD of a port wins.
	for _, m := range slices.Backward(mappings) {
		for _, r := range mappingRules(p, m) {
			place := fmt.Sprintf("insert rule %s %s %s", family, portTable, r.chain)
			if handle := behind(m); handle != 0 && r.chain != chainMasquerading {
				place = fmt.Sprintf("add rule %s %s %s handle %d", family, portTable, r.chain, handle)
			}
			s.add("%s %s comment %q", place, r.rule, p.Ref.ContainerID)
		}
	}
}

// keptBy returns the handle of the last rule by which the container's other
// attachments have the mapping's port, 0 for none: the first attachment keeps it, as
// with upstream's rules, which are appended. A repeated ADD of that one changes
// nothing: what comes behind a rule that is gone does not count.
func keptBy(have list, p netfilter.Ports, m netfilter.Mapping, gone []rule) (handle int) {
	chain := chainHostPorts
	if !m.HostIP.IsUnspecified() {
		chain = chainHostIPPorts
	}
	for _, r := range have.rules(chain) {
		if slices.ContainsFunc(gone, func(g rule) bool { return g.Handle == r.Handle && g.Family == r.Family && r.isFor(m) }) {
			break
		}
		if r.Comment == p.Ref.ContainerID && slices.ContainsFunc(netfilter.SpareMappings(p.Spare, ""), func(o netfilter.Mapping) bool {
			return o.Key == m.Key && r.isFor(o)
		}) {
			handle = r.Handle
		}
	}
	return handle
}

// placedRule is a rule and the chain that it goes into.
type placedRule struct{ chain, rule string }

// mappingRules are the rules of one mapping: where it goes, and which
// sources are masqueraded for this port.
func mappingRules(p netfilter.Ports, m netfilter.Mapping) []placedRule {
	chain, to, ip := chainHostPorts, "", familyName(m.PodIP.Is6())
	if !m.HostIP.IsUnspecified() {
		chain, to = chainHostIPPorts, fmt.Sprintf("%s daddr %s ", ip, m.HostIP)
	}
	proto, conditions := ipproto.Name(m.Proto), ""
	if c := p.Conditions(m.PodIP.Is6()); len(c) > 0 {
		conditions = strings.Join(c, " ") + " "
	}
	rules := []placedRule{{chain, fmt.Sprintf("%s%s%s dport %d dnat to %s", conditions, to, proto, m.Port, netip.AddrPortFrom(m.PodIP, m.PodPort))}}
	if !p.SNAT {
		return rules
	}
	sources := []string{fmt.Sprintf("%s saddr %s ", ip, p.Subnet(m.PodIP))}
	switch {
	case p.MasqAll:
		sources = []string{""}
	case m.PodIP.Is4():
		sources = append(sources, "ip saddr 127.0.0.1 ")
	}
	for _, src := range sources {
		rules = append(rules, placedRule{chainMasquerading, fmt.Sprintf("ct status dnat %s%s daddr %s %s dport %d ct original proto-dst %d masquerade",
			src, ip, m.PodIP, proto, m.PodPort, m.Port)})
	}
	return rules
}

// portRules are the rules of an attachment: those with its container's id as
// comment that mention one of its addresses, and are for no spare port. If its
// addresses are not known, that is all but the rules for spare ports.
func portRules(have list, h netfilter.Held) []rule {
	var out []rule
	spare := netfilter.SpareMappings(h.Spare, "") // a comment has the container alone
	var pods []string                             // its addresses, each once
	for _, m := range h.Mappings {
		if ip := m.PodIP.String(); !slices.Contains(pods, ip) {
			pods = append(pods, ip)
		}
	}
	for _, chain := range []string{chainHostPorts, chainHostIPPorts, chainMasquerading} {
		for _, r := range have.rules(chain) {
			if r.Comment != h.Ref.ContainerID {
				continue
			}
			own := h.Mappings == nil || slices.ContainsFunc(pods, r.mentions)
			if own && !slices.ContainsFunc(spare, r.isFor) {
				out = append(out, r)
			}
		}
	}
	return out
}

// spareOthers is the spare ports without those that the attachment has too: its own
// ADD and CHECK take the rules of those for its own. They have one target.
func spareOthers(p netfilter.Ports) []netfilter.Held {
	others := slices.DeleteFunc(netfilter.SpareMappings(p.Spare, ""), func(m netfilter.Mapping) bool { return slices.Contains(p.Mappings, m) })
	return []netfilter.Held{{Mappings: others}}
}

// isFor reports that the rule leads the mapping's port to its pod, or masquerades
// for it.
func (r rule) isFor(m netfilter.Mapping) bool {
	e := string(r.Expr)
	number := func(n uint16) bool { return strings.Contains(e, fmt.Sprintf(`"right":%d`, n)) }
	if !r.mentions(m.PodIP.String()) || !r.mentions(ipproto.Name(m.Proto)) || !number(m.Port) {
		return false
	}
	if r.Chain == chainMasquerading {
		return number(m.PodPort)
	}
	if !strings.Contains(e, fmt.Sprintf(`"port":%d`, m.PodPort)) {
		return false
	}
	if m.HostIP.IsUnspecified() {
		return r.Chain == chainHostPorts
	}
	return r.mentions(m.HostIP.String()) // in either chain: upstream puts it into that of all addresses
}

// DelPorts removes the attachment's rules.
func (n *Tables) DelPorts(ctx context.Context, h netfilter.Held) error {
	return n.remove(ctx, portTables(), func(have list) script {
		s := script{}
		for _, r := range portRules(have, h) {
			s.drop(r)
		}
		return s
	})
}

// CheckPorts compares the rules with what AddPorts made: the shared chains and
// hooks, where each port leads, and how many rules masquerade.
func (n *Tables) CheckPorts(ctx context.Context, p netfilter.Ports) error {
	path, err := n.program()
	if err != nil {
		return err
	}
	have, err := n.list(ctx, path, portTables())
	if err != nil {
		return err
	}
	var errs []error
	for _, v6 := range []bool{false, true} {
		mappings := netfilter.OfFamily(p.Mappings, v6)
		if len(mappings) == 0 {
			continue
		}
		family := familyName(v6)
		for _, jump := range [][2]string{{"prerouting", chainAllPorts}, {"output", chainAllPorts}, {chainAllPorts, chainHostPorts}, {chainAllPorts, chainHostIPPorts}} {
			if !slices.ContainsFunc(have.rules(jump[0]), func(r rule) bool { return r.Family == family && r.mentions(jump[1]) }) {
				errs = append(errs, fmt.Errorf("%w: nothing in %s of table %s %s leads to %s", netfilter.ErrDiffers, jump[0], family, portTable, jump[1]))
			}
		}
		errs = append(errs, checkMappings(have, p, mappings, family)...)
	}
	return errors.Join(errs...)
}

func checkMappings(have list, p netfilter.Ports, mappings []netfilter.Mapping, family string) []error {
	var errs []error
	own := portRules(have, netfilter.Held{Ref: p.Ref, Mappings: mappings, Spare: spareOthers(p)})
	count := make(map[string]int)
	leading := make(map[string][]rule) // by the numbers that they compare: a pod may publish thousands of ports
	for _, r := range own {
		count[r.Chain]++
		if r.Chain != chainMasquerading {
			for _, text := range strings.Split(string(r.Expr), `"right":`)[1:] {
				number := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
				leading[number] = append(leading[number], r)
			}
		}
	}
	want := make(map[string]int)
	for _, m := range mappings {
		for _, r := range mappingRules(p, m) {
			want[r.chain]++
		}
		if !slices.ContainsFunc(leading[strconv.Itoa(int(m.Port))], func(r rule) bool { return r.isFor(m) }) {
			errs = append(errs, fmt.Errorf("%w: port %d/%s of %s is not in table %s %s", netfilter.ErrDiffers, m.Port, ipproto.Name(m.Proto), m.PodIP, family, portTable))
		}
	}
	if p.ThirdParty {
		return errs
	}
	for chain, k := range want {
		if count[chain] != k {
			errs = append(errs, fmt.Errorf("%w: %d rules of the attachment in %s of table %s %s, not %d", netfilter.ErrDiffers, count[chain], chain, family, portTable, k))
		}
	}
	return errs
}

// SweepPorts does nothing: a rule holds the container's id and not the network,
// and the same id in another network is none of this one's business. What has a
// record is collected by it, what the runtime remembers by its own DELs.
func (*Tables) SweepPorts(context.Context, string, func(string) bool) error { return nil }
