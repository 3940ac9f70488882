// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
	"github.com/sluice-cni/sluice/pkg/netfilter/nftables"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// use counts who uses which kind of tables.
type use struct {
	netfilter.Usage
	hint string // the variant that Kubernetes marked
}

// Usage counts rules. Those of tables of Sluice and upstream's plugins in nftables
// are left out.
func (n *Node) Usage(ctx context.Context) (netfilter.Usage, error) {
	u, err := n.lookUse(ctx, false)
	return u.Usage, err
}

// lookUse counts. Only rules count: listing a legacy table makes an empty one, so
// that a table that exists proves nothing. With thirdParty the rules of CNI plugins
// do not count, which takes a process for each table of iptables.
func (n *Node) lookUse(ctx context.Context, thirdParty bool) (use, error) {
	var u use
	chains, err := n.env.NFTChains()
	if err != nil {
		return u, err
	}
	for _, c := range chains {
		switch {
		case isIPTables(c):
			u.NFT += int(c.Use)
			if iptables.IsHint(c.Name) {
				u.hint = iptables.VariantNFT
			}
		case isNative(c):
			u.Native += int(c.Use)
		}
	}
	legacy := iptables.New(n.env, iptables.VariantLegacy)
	var hint bool
	if u.Legacy, hint, err = legacy.Count(ctx, thirdParty); err != nil {
		return u, err
	}
	if hint {
		u.hint = iptables.VariantLegacy
	}
	if thirdParty && u.NFT > 0 {
		u.NFT, _, err = iptables.New(n.env, iptables.VariantNFT).Count(ctx, thirdParty)
	}
	return u, err
}

func isIPTables(c rtnl.NFTChain) bool {
	return (c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6) && iptables.IsTable(c.Table)
}

// isNative reports that a third party works with nftables proper, on the way of
// packets between networks: macspoofchk has a chain for bridges on any node.
func isNative(c rtnl.NFTChain) bool {
	ip := c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET
	return ip && !nftables.IsTable(c.Table)
}

// prefer says what use speaks for: the tool, the variant, why, and whether it is
// a fact rather than a default.
func (u use) prefer() (name, why string, fact bool) {
	counts := fmt.Sprintf("%d rules of iptables-nft, %d of iptables-legacy, %d of nftables", u.NFT, u.Legacy, u.Native)
	switch {
	case u.hint != "":
		return netfilter.NameIPTables + "-" + u.hint, "Kubernetes marked its tables as iptables-" + u.hint, true
	case u.Legacy > u.NFT:
		return netfilter.NameIPTablesLegacy, "the node has " + counts, true
	case u.NFT > 0:
		return netfilter.NameIPTablesNFT, "the node has " + counts, true
	case u.Native > 0:
		return netfilter.NameNFTables, "the node has " + counts, true
	}
	return "", "no tables are in use", false
}
