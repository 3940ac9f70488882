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

// AddMasq masquerades what addresses send to outside of their subnets and not
// to multicast groups.
func (t *Tables) AddMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, v6 := range netfilter.Families(addrs) {
		if err := t.edit(ctx, v6, "nat", func(have table) (script, error) { return planMasq(ref, addrs, v6, have), nil }); err != nil {
			return err
		}
	}
	return nil
}

// planMasq fills the attachment's chain. Upstream's name for it leaves the
// interface out, so that another attachment of the container may have rules in
// it already: they stay.
func planMasq(ref attachments.ID, addrs []netip.Prefix, v6 bool, have table) script {
	var s script
	chain, note := masqChain(ref), quote(masqComment(ref))
	s.ensureChain(have, chain)
	if len(have.find(chain, "-j MASQUERADE")) == 0 {
		s.add("-A %s %s", chain, masqRule(v6, note))
	}
	for _, a := range addrs {
		if a.Addr().Is6() != v6 {
			continue
		}
		if !hasRule(have, chain, subnetRule(a, note)) {
			s.add("-I %s 1 %s", chain, subnetRule(a, note))
		}
		if jump := masqJump(a, chain, note); !hasRule(have, "POSTROUTING", jump) {
			s.add("-A POSTROUTING %s", jump)
		}
	}
	return s
}

func subnetRule(a netip.Prefix, note string) string {
	return fmt.Sprintf("-d %s -m comment --comment %s -j ACCEPT", a.Masked(), note)
}

func masqRule(v6 bool, note string) string {
	return fmt.Sprintf("! -d %s -m comment --comment %s -j MASQUERADE", multicast(v6), note)
}

func masqJump(a netip.Prefix, chain, note string) string {
	return fmt.Sprintf("-s %s -m comment --comment %s -j %s", host(a.Addr()), note, chain)
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func hasRule(have table, chain, rule string) bool {
	return slices.ContainsFunc(have.chains[chain], func(r string) bool { return sameRule(r, rule) })
}

// DelMasq removes the masquerading of the addresses, of all that the chain has
// but spare when addrs is nil. It needs neither the pod nor its device. The chain
// goes with the last rule that leads to it.
func (t *Tables) DelMasq(ctx context.Context, ref attachments.ID, addrs, spare []netip.Prefix) error {
	chain := masqChain(ref)
	goes := func(r string) bool { return isFrom(r, addrs) || addrs == nil && !isFrom(r, spare) }
	return t.remove(ctx, "nat", func(_ bool, have table) (script, error) {
		var s script
		jumps := have.find("POSTROUTING", "-j "+chain)
		if len(slices.DeleteFunc(slices.Clone(jumps), goes)) == 0 {
			s.dropChain(have, chain)
			return s, nil
		}
		for _, r := range jumps {
			if goes(r) {
				s.add("-D POSTROUTING %s", r)
			}
		}
		return s, nil
	}, chain)
}

// isFrom reports that the rule's source is one of the addresses. Old releases of
// upstream wrote the whole subnet.
func isFrom(rule string, addrs []netip.Prefix) bool {
	return slices.ContainsFunc(addrs, func(a netip.Prefix) bool {
		return containsAll(rule, []string{"-s " + host(a.Addr()).String()}) || containsAll(rule, []string{"-s " + a.Masked().String()})
	})
}

// CheckMasq compares the rules with what AddMasq made.
func (t *Tables) CheckMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	var errs []error
	chain, note := masqChain(ref), quote(masqComment(ref))
	for _, v6 := range netfilter.Families(addrs) {
		have, err := t.read(ctx, v6, "nat")
		if err != nil {
			return err
		}
		want := map[string][]string{chain: {masqRule(v6, note)}}
		for _, a := range addrs {
			if a.Addr().Is6() == v6 {
				want[chain] = append(want[chain], subnetRule(a, note))
				want["POSTROUTING"] = append(want["POSTROUTING"], masqJump(a, chain, note))
			}
		}
		for c, rules := range want {
			for _, r := range rules {
				if !hasRule(have, c, r) {
					errs = append(errs, fmt.Errorf("%w: missing in %s: %s", netfilter.ErrDiffers, c, r))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// SweepMasq removes the masquerading of a network's attachments that are not
// in keep. The rules name network and container, not the interface.
func (t *Tables) SweepMasq(ctx context.Context, network string, keep []attachments.ID) error {
	return t.remove(ctx, "nat", func(_ bool, have table) (script, error) {
		var s script
		dropped := make(map[string]bool)
		for _, r := range have.chains["POSTROUTING"] {
			ref, ok := namesIn(comment(r))
			_, chain, jumps := strings.Cut(r, "-j ")
			if !ok || !jumps || ref.Network != network || chain != masqChain(ref) || dropped[chain] || slices.ContainsFunc(keep, func(k attachments.ID) bool { return k.ContainerID == ref.ContainerID }) {
				continue
			}
			dropped[chain] = true
			s.dropChain(have, chain)
		}
		return s, nil
	}, "POSTROUTING")
}
