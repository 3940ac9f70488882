// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

func masqTables() []tableName { return []tableName{{"inet", masqTable, masqChain}} }

// AddMasq masquerades what addresses send to outside of their subnets and not
// to multicast groups, in one transaction that also takes out what an earlier
// ADD of the attachment left.
func (n *Tables) AddMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, masqTables(), func(have list) script {
		s := script{}
		s.table("inet", masqTable, "Masquerading for plugins from github.com/containernetworking/plugins")
		s.add("add chain inet %s %s", masqTable, masqChain)
		s.only("inet", masqTable, "postrouting", "nat hook postrouting priority 100",
			"ip daddr == 224.0.0.0/4 return", "ip6 daddr == ff00::/8 return", "goto "+masqChain)
		for _, r := range masqRules(have, attachmentHash(ref)) {
			s.drop(r)
		}
		for _, a := range addrs {
			ip := familyName(a.Addr().Is6())
			s.add("add rule inet %s %s %s saddr == %s %s daddr != %s masquerade comment %q",
				masqTable, masqChain, ip, a.Addr(), ip, a.Masked(), commentOf(ref))
		}
		return s
	})
}

// masqRules are the rules whose comment begins with the id. Only the id is
// compared: the words after it may be cut.
func masqRules(have list, id string) []rule {
	return slices.DeleteFunc(have.rules(masqChain), func(r rule) bool { return !strings.HasPrefix(r.Comment, id) })
}

// DelMasq removes the attachment's rules, whatever its addresses.
func (n *Tables) DelMasq(ctx context.Context, ref attachments.ID, _, _ []netip.Prefix) error {
	return n.remove(ctx, masqTables(), func(have list) script {
		s := script{}
		for _, r := range masqRules(have, attachmentHash(ref)) {
			s.drop(r)
		}
		return s
	})
}

// CheckMasq compares the rules with what AddMasq made.
func (n *Tables) CheckMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	path, err := n.program()
	if err != nil {
		return err
	}
	have, err := n.list(ctx, path, masqTables())
	if err != nil {
		return err
	}
	rules := masqRules(have, attachmentHash(ref))
	for _, a := range addrs {
		if !slices.ContainsFunc(rules, func(r rule) bool {
			return r.mentions(a.Addr().String()) && strings.Contains(string(r.Expr), `"masquerade"`)
		}) {
			return fmt.Errorf("%w: no rule masquerades %s", netfilter.ErrDiffers, a.Addr())
		}
	}
	if len(rules) != len(addrs) {
		return fmt.Errorf("%w: %d rules masquerade the attachment, not %d", netfilter.ErrDiffers, len(rules), len(addrs))
	}
	if !slices.ContainsFunc(have.rules("postrouting"), func(r rule) bool { return r.mentions(masqChain) }) {
		return fmt.Errorf("%w: nothing in postrouting leads to %s", netfilter.ErrDiffers, masqChain)
	}
	return nil
}

// SweepMasq removes the masquerading of a network's attachments that are not in
// keep.
func (n *Tables) SweepMasq(ctx context.Context, network string, keep []attachments.ID) error {
	ids := make(map[string]bool, len(keep))
	for _, r := range keep {
		ids[attachmentHash(r)] = true
	}
	return n.remove(ctx, masqTables(), func(have list) script {
		s := script{}
		for _, r := range masqRules(have, networkHash(network)+"-") {
			if id, _, _ := strings.Cut(r.Comment, ","); !ids[id] {
				s.drop(r)
			}
		}
		return s
	})
}
