// SPDX-License-Identifier: Apache-2.0

package iptables

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

// maxMultiport is how many ports one multiport match takes.
const maxMultiport = 15

// AddPorts publishes ports: a chain of the attachment's own, rules that lead to
// it, and the shared chains where they are missing. A repeated ADD replaces what
// the first one made.
func (t *Tables) AddPorts(ctx context.Context, p netfilter.Ports) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, v6 := range []bool{false, true} {
		mappings := netfilter.OfFamily(p.Mappings, v6)
		plan := func(have table) (script, error) { return t.planPorts(p, mappings, v6, have) }
		if len(mappings) == 0 {
			if !t.mayHave(v6, "nat", dnatChain(p.Ref), secondDNATChain(p.Ref)) {
				continue
			}
			plan = func(have table) (s script, _ error) {
				s.dropPorts(have, netfilter.Held{Ref: p.Ref, Spare: p.Spare})
				return s, nil
			}
		}
		if err := t.edit(ctx, v6, "nat", plan); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tables) planPorts(p netfilter.Ports, mappings []netfilter.Mapping, v6 bool, have table) (script, error) {
	var s script
	if p.SNAT {
		if err := planMark(&s, p, have); err != nil {
			return s, err
		}
	}
	s.ensureChain(have, chainDNAT)
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		if len(have.find(hook, "-j "+chainDNAT)) == 0 {
			s.add("-A %s -m addrtype --dst-type LOCAL -j %s", hook, chainDNAT)
		}
	}
	own, second := dnatChain(p.Ref), secondDNATChain(p.Ref)
	if leadsElsewhere(have.chains[own], netfilter.Held{Ref: p.Ref, Spare: p.Spare}) {
		own = second
	} else {
		s.dropChain(have, second)
	}
	stale := have.find(chainDNAT, "-j "+own)
	for _, r := range stale {
		s.add("-D %s %s", chainDNAT, r)
	}
	s.ownChain(own)
	for _, r := range dnatRules(p, mappings) {
		s.add("-A %s %s", own, r)
	}
	gone := slices.Concat(stale, have.find(chainDNAT, "-j "+second))
	s.insertEntries(have.chains[chainDNAT], gone, entryRules(p, mappings, v6, own), siblingJumps(p.Spare))
	return s, nil
}

// siblingJumps are how the rules end that lead to the chains of the container's other
// attachments.
func siblingJumps(spare []netfilter.Held) (out []string) {
	for _, h := range spare {
		out = append(out, "-j "+dnatChain(h.Ref), "-j "+secondDNATChain(h.Ref))
	}
	return out
}

// insertEntries puts the entries into the shared chain, from which the rules that are
// gone have been taken. The last ADD of a port wins, and a port of one address wins
// over a port of all: entries with an address are put first, the others behind those.
// An entry goes behind those of siblings that have a port of it, as in upstream's
// chain, which grows at its end. So the first attachment of a container keeps a port.
// A repeated ADD of that one does not change it: only what was before the first rule
// that is gone counts.
func (s *script) insertEntries(chain, gone []string, entries []entry, siblings []string) {
	var now, before []string
	for i, r := range chain {
		if slices.Contains(gone, r) {
			continue
		}
		now = append(now, r)
		if len(now) == i+1 && slices.ContainsFunc(siblings, func(jump string) bool { return containsAll(r, []string{jump}) }) {
			before = append(before, r)
		}
	}
	for _, e := range entries {
		place := 0
		for i, r := range now {
			specific := strings.Contains(" "+r, " -d ")
			if specific && !e.specific || slices.Contains(before, r) && sharePort(r, e.rule) {
				place = i + 1
			}
		}
		s.add("-I %s %d %s", chainDNAT, place+1, e.rule)
		now = slices.Insert(now, place, e.rule)
	}
}

// sharePort reports that two entries are for a port of the same protocol and address.
func sharePort(a, b string) bool {
	value := func(rule, option string) string {
		w := words(rule)
		if i := slices.Index(w, option); i >= 0 && i+1 < len(w) {
			return w[i+1]
		}
		return ""
	}
	if value(a, "-p") != value(b, "-p") || value(a, "-d") != value(b, "-d") {
		return false
	}
	of := strings.Split(value(b, "--dports"), ",")
	return slices.ContainsFunc(strings.Split(value(a, "--dports"), ","), func(port string) bool { return slices.Contains(of, port) })
}

// planMark makes the chains that mark what has to be masqueraded, and that do
// it. With a chain of a third party it only looks for that one.
func planMark(s *script, p netfilter.Ports, have table) error {
	if p.MarkChain != "" {
		if !have.has(p.MarkChain) {
			return fmt.Errorf("chain %s of the table nat: %w", p.MarkChain, netfilter.ErrNoChain)
		}
		return nil
	}
	mark := fmt.Sprintf("%#x/%#x", uint32(1)<<p.MarkBit, uint32(1)<<p.MarkBit)
	s.ensureChain(have, chainSetMark)
	if len(have.find(chainSetMark, "--set-xmark "+mark)) == 0 {
		s.add("-A %s -m comment --comment %q -j MARK --set-xmark %s", chainSetMark, commentMark, mark)
	}
	s.ensureChain(have, chainMasq)
	if len(have.find(chainMasq, "--mark "+mark)) == 0 {
		s.add("-A %s -m mark --mark %s -j MASQUERADE", chainMasq, mark)
	}
	if len(have.find("POSTROUTING", "-j "+chainMasq)) == 0 {
		// Before the masquerading of pods, which would end the chain for what
		// they send to themselves.
		s.add("-I POSTROUTING 1 -m comment --comment %q -j %s", commentMasq, chainMasq)
	}
	return nil
}

// entry is a rule of CHAIN-HOSTPORT-DNAT. specific ones are for one address.
type entry struct {
	rule     string
	specific bool
}

// entryRules lead from the shared chain to the attachment's: one for each host
// address and protocol, and 15 ports. Wildcards come first, so that inserting
// one after the other leaves the specific ones in front.
func entryRules(p netfilter.Ports, mappings []netfilter.Mapping, v6 bool, own string) []entry {
	note := dnatComment(p.Ref)
	if own != dnatChain(p.Ref) {
		note = secondComment(p.Ref)
	}
	type group struct {
		host  netip.Addr
		proto string
	}
	ports := make(map[group][]string)
	var order []group
	for _, m := range mappings {
		g := group{m.HostIP, ipproto.Name(m.Proto)}
		if ports[g] == nil {
			order = append(order, g)
		}
		ports[g] = append(ports[g], strconv.Itoa(int(m.Port)))
	}
	slices.SortStableFunc(order, func(a, b group) int {
		if a.host.IsUnspecified() != b.host.IsUnspecified() {
			if a.host.IsUnspecified() {
				return -1
			}
			return 1
		}
		return strings.Compare(a.proto, b.proto)
	})
	var out []entry
	for _, g := range order {
		for chunk := range slices.Chunk(ports[g], maxMultiport) {
			e := entry{specific: !g.host.IsUnspecified()}
			to := destination(g.host)
			if hasDestination(p.Conditions(v6)) { // the attachment's chain has the address
				to = ""
			}
			e.rule = fmt.Sprintf("%s-p %s -m comment --comment %s -m multiport --dports %s", to, g.proto, quote(note), strings.Join(chunk, ","))
			if c := p.Conditions(v6); len(c) > 0 {
				e.rule += " " + quoteAll(c)
			}
			e.rule += " -j " + own
			out = append(out, e)
		}
	}
	return out
}

// hasDestination reports that conditions match the destination, which a rule can
// do once.
func hasDestination(conditions []string) bool {
	return slices.ContainsFunc(conditions, func(w string) bool { return w == "-d" || w == "--dst" || w == "--destination" })
}

// destination is the match for a host address, empty for all of them.
func destination(host netip.Addr) string {
	if host.IsUnspecified() {
		return ""
	}
	return fmt.Sprintf("-d %s ", netip.PrefixFrom(host, host.BitLen()))
}

// dnatRules are the rules of the attachment's own chain, written as
// iptables-save does: per mapping what is to be masqueraded, then where it goes.
func dnatRules(p netfilter.Ports, mappings []netfilter.Mapping) []string {
	var out []string
	mark := chainSetMark
	if p.MarkChain != "" {
		mark = p.MarkChain
	}
	sorted := slices.Clone(mappings)
	slices.SortStableFunc(sorted, func(a, b netfilter.Mapping) int { // the specific ones first
		switch au, bu := a.HostIP.IsUnspecified(), b.HostIP.IsUnspecified(); {
		case au == bu:
			return 0
		case bu:
			return -1
		}
		return 1
	})
	for _, m := range sorted {
		proto := ipproto.Name(m.Proto)
		match := fmt.Sprintf("%s-p %s -m %s --dport %d", destination(m.HostIP), proto, proto, m.Port)
		if p.SNAT {
			for _, src := range masqSources(p, m) {
				out = append(out, fmt.Sprintf("%s%s -j %s", src, match, mark))
			}
		}
		out = append(out, fmt.Sprintf("%s -j DNAT --to-destination %s", match, netip.AddrPortFrom(m.PodIP, m.PodPort)))
	}
	return out
}

// masqSources are the source matches of what needs masquerading.
func masqSources(p netfilter.Ports, m netfilter.Mapping) []string {
	if p.MasqAll {
		return []string{""}
	}
	sources := []string{fmt.Sprintf("-s %s ", p.Subnet(m.PodIP))}
	if m.PodIP.Is4() {
		sources = append(sources, "-s 127.0.0.1/32 ")
	}
	return sources
}

// DelPorts removes the attachment's chains and all that leads to them, also the
// chain that old releases of upstream made. A chain that by now leads to
// other pods only, because the container's name was used again, stays.
func (t *Tables) DelPorts(ctx context.Context, h netfilter.Held) error {
	old := oldSNATChain(h.Ref)
	return t.remove(ctx, "nat", func(_ bool, have table) (script, error) {
		var s script
		s.dropPorts(have, h)
		s.dropChain(have, old)
		return s, nil
	}, dnatChain(h.Ref), secondDNATChain(h.Ref), old)
}

// dropPorts removes the attachment's chain, by either name.
func (s *script) dropPorts(have table, h netfilter.Held) {
	if own := dnatChain(h.Ref); !leadsElsewhere(have.chains[own], h) {
		s.dropChain(have, own)
	}
	s.dropChain(have, secondDNATChain(h.Ref))
}

// leadsElsewhere reports that no rule is for a port that may be the attachment's:
// one that leads to an address that it is known to have had, and that is not spare.
func leadsElsewhere(rules []string, h netfilter.Held) bool {
	var targets, own int
	spare := netfilter.SpareMappings(h.Spare, h.Ref.Network) // a chain's name has the network
	for _, r := range rules {
		to, ok := mappingOf(r)
		if !ok {
			continue
		}
		targets++
		switch {
		case slices.Contains(spare, to):
		case h.Mappings == nil, slices.ContainsFunc(h.Mappings, func(m netfilter.Mapping) bool { return m.PodIP == to.PodIP }):
			own++
		}
	}
	return targets > 0 && own == 0
}

// mappingOf reads a rule that translates the destination, as dnatRules and
// upstream write it.
func mappingOf(rule string) (m netfilter.Mapping, ok bool) {
	w := words(rule)
	for i, word := range w {
		if i+1 == len(w) {
			break
		}
		switch value := w[i+1]; word {
		case "-d":
			if p, err := netip.ParsePrefix(value); err == nil {
				m.HostIP = p.Addr()
			}
		case "-p":
			m.Proto = ipproto.Number(value)
		case "--dport":
			n, _ := strconv.ParseUint(value, 10, 16)
			m.Port = uint16(n)
		case "--to-destination":
			to, err := netip.ParseAddrPort(value)
			m.PodIP, m.PodPort, ok = to.Addr(), to.Port(), err == nil
		}
	}
	if !m.HostIP.IsValid() {
		m.HostIP = netfilter.AnyAddr(m.PodIP.Is6())
	}
	return m, ok
}

// CheckPorts compares the attachment's chain, what leads to it, and the shared
// chains and hooks with what AddPorts made.
func (t *Tables) CheckPorts(ctx context.Context, p netfilter.Ports) error {
	var errs []error
	for _, v6 := range []bool{false, true} {
		mappings := netfilter.OfFamily(p.Mappings, v6)
		if len(mappings) == 0 {
			continue
		}
		have, err := t.read(ctx, v6, "nat")
		if err != nil {
			return err
		}
		own := dnatChain(p.Ref)
		if second := secondDNATChain(p.Ref); have.has(second) {
			own = second
		}
		rules, entries := dnatRules(p, mappings), have.find(chainDNAT, "-j "+own)
		if p.ThirdParty {
			errs = append(errs, missing(have, own, rules)...)
			errs = append(errs, unled(entries, mappings)...)
		} else {
			errs = append(errs, checkRules(have, own, rules))
			for _, e := range entryRules(p, mappings, v6, own) {
				if len(p.Conditions(v6)) == 0 && !slices.ContainsFunc(entries, func(r string) bool { return sameRule(r, e.rule) }) || len(entries) == 0 {
					errs = append(errs, fmt.Errorf("%w: missing in %s: %s", netfilter.ErrDiffers, chainDNAT, e.rule))
				}
			}
		}
		errs = append(errs, checkJumps(have, p)...)
	}
	return errors.Join(errs...)
}

// missing are the rules that a chain lacks, in whatever order it has others.
func missing(have table, chain string, want []string) (errs []error) {
	for _, w := range want {
		if !slices.ContainsFunc(have.chains[chain], func(r string) bool { return sameRule(r, w) }) {
			errs = append(errs, fmt.Errorf("%w: missing in %s: %s", netfilter.ErrDiffers, chain, w))
		}
	}
	return errs
}

// unled are the ports that none of the entries has. Entries of upstream are for
// all ports of a protocol, without an address.
func unled(entries []string, mappings []netfilter.Mapping) (errs []error) {
	for _, m := range mappings {
		if !slices.ContainsFunc(entries, func(r string) bool {
			_, ports, _ := strings.Cut(r, "--dports ")
			ports, _, _ = strings.Cut(ports, " ")
			return strings.Contains(" "+r, " -p "+ipproto.Name(m.Proto)+" ") && slices.Contains(strings.Split(ports, ","), strconv.Itoa(int(m.Port)))
		}) {
			errs = append(errs, fmt.Errorf("%w: port %d/%s of %s is not in %s", netfilter.ErrDiffers, m.Port, ipproto.Name(m.Proto), m.PodIP, chainDNAT))
		}
	}
	return errs
}

// checkRules compares all rules of a chain, in their order.
func checkRules(have table, chain string, want []string) error {
	if !have.has(chain) {
		return fmt.Errorf("%w: no chain %s", netfilter.ErrDiffers, chain)
	}
	if !slices.EqualFunc(have.chains[chain], want, sameRule) {
		return fmt.Errorf("%w: chain %s has %q, not %q", netfilter.ErrDiffers, chain, have.chains[chain], want)
	}
	return nil
}

// checkJumps looks for what all attachments share.
func checkJumps(have table, p netfilter.Ports) []error {
	need := [][2]string{{"PREROUTING", chainDNAT}, {"OUTPUT", chainDNAT}}
	if p.SNAT && p.MarkChain == "" {
		need = append(need, [2]string{"POSTROUTING", chainMasq})
		mark := fmt.Sprintf("%#x/%#x", uint32(1)<<p.MarkBit, uint32(1)<<p.MarkBit)
		if len(have.find(chainSetMark, "--set-xmark "+mark)) == 0 || len(have.find(chainMasq, "--mark "+mark, "-j MASQUERADE")) == 0 {
			return []error{fmt.Errorf("%w: %s or %s does not know the mark %s", netfilter.ErrDiffers, chainSetMark, chainMasq, mark)}
		}
	}
	var errs []error
	for _, n := range need {
		if len(have.find(n[0], "-j "+n[1])) == 0 {
			errs = append(errs, fmt.Errorf("%w: nothing in %s leads to %s", netfilter.ErrDiffers, n[0], n[1]))
		}
	}
	return errs
}

// SweepPorts removes the ports of a network's containers that keep refuses. A
// rule names its network and container in the comment.
func (t *Tables) SweepPorts(ctx context.Context, network string, keep func(containerID string) bool) error {
	return t.remove(ctx, "nat", func(_ bool, have table) (script, error) {
		var s script
		dropped := make(map[string]bool)
		for _, r := range have.chains[chainDNAT] {
			ref, ok := namesIn(comment(r))
			_, chain, jumps := strings.Cut(r, "-j ")
			if !ok || !jumps || ref.Network != network || keep(ref.ContainerID) || dropped[chain] || !strings.HasPrefix(chain, "CNI-DN-") {
				continue
			}
			dropped[chain] = true
			s.dropChain(have, chain)
		}
		return s, nil
	}, chainDNAT)
}
