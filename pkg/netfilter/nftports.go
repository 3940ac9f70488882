// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Chains of the table cni_hostport.
const (
	nftHostPorts   = "hostports"
	nftHostIPPorts = "hostip_hostports"
	nftAllPorts    = "hostports_all"
	nftMasquerades = "masquerading"
)

func nftPortTables() []nftName {
	return []nftName{{"ip", nftPortTable, nftHostPorts}, {"ip6", nftPortTable, nftHostPorts}}
}

// AddPorts publishes ports in one transaction. A repeated ADD replaces what the
// first one made.
func (n *NFTables) AddPorts(ctx context.Context, p Ports) error {
	if p.MarkChain != "" {
		return fmt.Errorf("chain %s: %w: nftables has no chain that sets a mark for others", p.MarkChain, ErrNoChain)
	}
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, nftPortTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, r := range portRules(have, Held{Ref: p.Ref, Mappings: slices.Concat(p.Mappings, p.Before)}) {
			s.drop(r)
		}
		for _, v6 := range []bool{false, true} {
			if m := of(p.Mappings, v6); len(m) > 0 {
				planNFTPorts(&s, p, m, v6)
			}
		}
		return s
	})
}

// planNFTPorts writes the shared chains and the attachment's rules. Conditions
// are part of a mapping's own rule: in the shared chains, where upstream
// has them, they would be those of all attachments.
func planNFTPorts(s *nftScript, p Ports, mappings []Mapping, v6 bool) {
	family := nftFamily(v6)
	s.table(family, nftPortTable, "CNI portmap plugin")
	s.add("add chain %s %s %s", family, nftPortTable, nftHostPorts)
	s.add("add chain %s %s %s", family, nftPortTable, nftHostIPPorts)
	s.only(family, nftPortTable, nftAllPorts, "", "jump "+nftHostIPPorts, "jump "+nftHostPorts)
	local := "fib daddr type local jump " + nftAllPorts
	s.only(family, nftPortTable, "prerouting", "nat hook prerouting priority -100", local)
	s.only(family, nftPortTable, "output", "nat hook output priority -100", local)
	if p.SNAT {
		s.add("add chain %s %s %s { type nat hook postrouting priority 100 ; }", family, nftPortTable, nftMasquerades)
	}
	// Each rule is put first: the last ADD of a port wins.
	for _, m := range slices.Backward(mappings) {
		for _, r := range nftMappingRules(p, m) {
			s.add("insert rule %s %s %s %s comment %q", family, nftPortTable, r.chain, r.rule, p.Ref.ContainerID)
		}
	}
}

// nftMappingRules are the rules of one mapping: where it goes, and from whom it
// is masqueraded, which concerns this port alone.
func nftMappingRules(p Ports, m Mapping) []placedRule {
	chain, to, ip := nftHostPorts, "", nftFamily(m.PodIP.Is6())
	if !m.HostIP.IsUnspecified() {
		chain, to = nftHostIPPorts, fmt.Sprintf("%s daddr %s ", ip, m.HostIP)
	}
	proto, conditions := protoName(m.Proto), ""
	if c := p.conditions(m.PodIP.Is6()); len(c) > 0 {
		conditions = strings.Join(c, " ") + " "
	}
	rules := []placedRule{{chain, fmt.Sprintf("%s%s%s dport %d dnat to %s", conditions, to, proto, m.HostPort, netip.AddrPortFrom(m.PodIP, m.PodPort))}}
	if !p.SNAT {
		return rules
	}
	sources := []string{fmt.Sprintf("%s saddr %s ", ip, p.subnet(m.PodIP))}
	switch {
	case p.MasqAll:
		sources = []string{""}
	case m.PodIP.Is4():
		sources = append(sources, "ip saddr 127.0.0.1 ")
	}
	for _, src := range sources {
		rules = append(rules, placedRule{nftMasquerades, fmt.Sprintf("ct status dnat %s%s daddr %s %s dport %d ct original proto-dst %d masquerade",
			src, ip, m.PodIP, proto, m.PodPort, m.HostPort)})
	}
	return rules
}

// portRules are the rules of an attachment: those with its container's id as
// comment that mention one of its addresses, or, when these are not known, no
// address that is another's.
func portRules(have nftList, h Held) []nftRule {
	var out []nftRule
	for _, chain := range []string{nftHostPorts, nftHostIPPorts, nftMasquerades} {
		for _, r := range have.rules(chain) {
			if r.Comment != h.Ref.ContainerID {
				continue
			}
			ours := slices.ContainsFunc(h.Mappings, func(m Mapping) bool { return r.mentions(m.PodIP.String()) })
			if h.Mappings == nil {
				ours = !slices.ContainsFunc(h.Spare, func(a netip.Addr) bool { return r.mentions(a.String()) })
			}
			if ours {
				out = append(out, r)
			}
		}
	}
	return out
}

// DelPorts removes the attachment's rules.
func (n *NFTables) DelPorts(ctx context.Context, h Held) error {
	return n.remove(ctx, nftPortTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, r := range portRules(have, h) {
			s.drop(r)
		}
		return s
	})
}

// CheckPorts compares the rules with what AddPorts made: the shared chains and
// hooks, where each port leads, and how many rules masquerade.
func (n *NFTables) CheckPorts(ctx context.Context, p Ports) error {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return fmt.Errorf("%w: nft is not installed", ErrUnusable)
	}
	have, err := n.list(ctx, path, nftPortTables())
	if err != nil {
		return err
	}
	var errs []error
	for _, v6 := range []bool{false, true} {
		mappings := of(p.Mappings, v6)
		if len(mappings) == 0 {
			continue
		}
		family := nftFamily(v6)
		for _, jump := range [][2]string{{"prerouting", nftAllPorts}, {"output", nftAllPorts}, {nftAllPorts, nftHostPorts}, {nftAllPorts, nftHostIPPorts}} {
			if !slices.ContainsFunc(have.rules(jump[0]), func(r nftRule) bool { return r.Family == family && r.mentions(jump[1]) }) {
				errs = append(errs, fmt.Errorf("%w: nothing in %s of table %s %s leads to %s", ErrDiffers, jump[0], family, nftPortTable, jump[1]))
			}
		}
		errs = append(errs, checkNFTMappings(have, p, mappings, family)...)
	}
	return errors.Join(errs...)
}

func checkNFTMappings(have nftList, p Ports, mappings []Mapping, family string) []error {
	var errs []error
	own := portRules(have, Held{Ref: p.Ref, Mappings: mappings})
	count := make(map[string]int)
	for _, r := range own {
		count[r.Chain]++
	}
	want := make(map[string]int)
	for _, m := range mappings {
		for _, r := range nftMappingRules(p, m) {
			want[r.chain]++
		}
		if !slices.ContainsFunc(own, func(r nftRule) bool {
			e := string(r.Expr)
			return r.Chain != nftMasquerades && strings.Contains(e, fmt.Sprintf(`"right":%d`, m.HostPort)) && strings.Contains(e, fmt.Sprintf(`"port":%d`, m.PodPort)) &&
				(m.HostIP.IsUnspecified() || r.mentions(m.HostIP.String()))
		}) {
			errs = append(errs, fmt.Errorf("%w: port %d/%s of %s is not in table %s %s", ErrDiffers, m.HostPort, protoName(m.Proto), m.PodIP, family, nftPortTable))
		}
	}
	if p.Stranger {
		return errs
	}
	for chain, k := range want {
		if count[chain] != k {
			errs = append(errs, fmt.Errorf("%w: %d rules of the attachment in %s of table %s %s, not %d", ErrDiffers, count[chain], chain, family, nftPortTable, k))
		}
	}
	return errs
}

// SweepPorts does nothing: a rule holds the container's id and not the network,
// and the same id in another network is none of this one's business. What has a
// record is collected by it, what the runtime remembers by its own DELs.
func (*NFTables) SweepPorts(context.Context, string, func(string) bool) error { return nil }
