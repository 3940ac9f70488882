// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

func nftMasqTables() []nftName { return []nftName{{"inet", nftMasqTable, nftMasqChain}} }

// AddMasq masquerades what addresses send to outside of their subnets and not
// to multicast groups, in one transaction that also takes out what an earlier
// ADD of the attachment left.
func (n *NFTables) AddMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, nftMasqTables(), func(have nftList) nftScript {
		s := nftScript{}
		s.table("inet", nftMasqTable, "Masquerading for plugins from github.com/containernetworking/plugins")
		s.add("add chain inet %s %s", nftMasqTable, nftMasqChain)
		s.only("inet", nftMasqTable, "postrouting", "nat hook postrouting priority 100",
			"ip daddr == 224.0.0.0/4 return", "ip6 daddr == ff00::/8 return", "goto "+nftMasqChain)
		for _, r := range masqRules(have, nftID(ref)) {
			s.drop(r)
		}
		for _, a := range addrs {
			ip := nftFamily(a.Addr().Is6())
			s.add("add rule inet %s %s %s saddr == %s %s daddr != %s masquerade comment %q",
				nftMasqTable, nftMasqChain, ip, a.Addr(), ip, a.Masked(), nftComment(ref))
		}
		return s
	})
}

// masqRules are the rules whose comment begins with the id. Only the id is
// compared: the words after it may be cut.
func masqRules(have nftList, id string) []nftRule {
	return slices.DeleteFunc(have.rules(nftMasqChain), func(r nftRule) bool { return !strings.HasPrefix(r.Comment, id) })
}

// DelMasq removes the attachment's rules, whatever its addresses.
func (n *NFTables) DelMasq(ctx context.Context, ref attachments.ID, _, _ []netip.Prefix) error {
	return n.remove(ctx, nftMasqTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, r := range masqRules(have, nftID(ref)) {
			s.drop(r)
		}
		return s
	})
}

// CheckMasq compares the rules with what AddMasq made.
func (n *NFTables) CheckMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return fmt.Errorf("%w: nft is not installed", ErrUnusable)
	}
	have, err := n.list(ctx, path, nftMasqTables())
	if err != nil {
		return err
	}
	rules := masqRules(have, nftID(ref))
	for _, a := range addrs {
		if !slices.ContainsFunc(rules, func(r nftRule) bool {
			return r.mentions(a.Addr().String()) && strings.Contains(string(r.Expr), `"masquerade"`)
		}) {
			return fmt.Errorf("%w: no rule masquerades %s", ErrDiffers, a.Addr())
		}
	}
	if len(rules) != len(addrs) {
		return fmt.Errorf("%w: %d rules masquerade the attachment, not %d", ErrDiffers, len(rules), len(addrs))
	}
	if !slices.ContainsFunc(have.rules("postrouting"), func(r nftRule) bool { return r.mentions(nftMasqChain) }) {
		return fmt.Errorf("%w: nothing in postrouting leads to %s", ErrDiffers, nftMasqChain)
	}
	return nil
}

// SweepMasq removes the masquerading of a network's attachments that are not in
// keep.
func (n *NFTables) SweepMasq(ctx context.Context, network string, keep []attachments.ID) error {
	ids := make(map[string]bool, len(keep))
	for _, r := range keep {
		ids[nftID(r)] = true
	}
	return n.remove(ctx, nftMasqTables(), func(have nftList) nftScript {
		s := nftScript{}
		for _, r := range masqRules(have, nftNetwork(network)+"-") {
			if id, _, _ := strings.Cut(r.Comment, ","); !ids[id] {
				s.drop(r)
			}
		}
		return s
	})
}
