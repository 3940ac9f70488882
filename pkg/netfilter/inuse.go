// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// system is the kernel.
type system struct{}

var _ kernel = system{}

func (system) HasNFTChain(family int, table, chain string) (bool, error) {
	return rtnl.NFTHasChain(family, table, chain)
}

func (system) NFTChains() ([]rtnl.NFTChain, error) { return rtnl.NFTChains() }

// LegacyTables reads the names that the kernel shows for the namespace; a kernel
// without the legacy tables shows none.
func (system) LegacyTables(v6 bool) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}

// use counts who uses which kind of tables.
type use struct {
	legacy, nft int // rules in the tables of either iptables
	native      int // rules in other tables of nftables
	hint        string
}

// iptTables are the tables of iptables.
var iptTables = []string{"filter", "nat", "mangle", "raw", "security"}

// hints are chains that Kubernetes' components make in the variant that they
// use, for others to see.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// lookUse counts. Only rules count: listing a legacy table makes an empty one, so
// that a table that exists proves nothing.
func (e env) lookUse(ctx context.Context) (use, error) {
	var u use
	chains, err := e.kernel.NFTChains()
	if err != nil {
		return u, err
	}
	for _, c := range chains {
		switch {
		case isIPTables(c):
			u.nft += int(c.Use)
			if slices.Contains(hints, c.Name) {
				u.hint = VariantNFT
			}
		case isNative(c):
			u.native += int(c.Use)
		}
	}
	return u, e.countLegacy(ctx, &u, func(string, string) bool { return true })
}

// lookStrangers counts rules that neither we nor the upstream plugins made: a
// choice must not speak for itself. It takes a process for each family.
func (e env) lookStrangers(ctx context.Context) (use, error) {
	u, err := e.lookUse(ctx)
	if err != nil || u.nft == 0 && u.legacy == 0 {
		return u, err
	}
	u.nft, u.legacy = 0, 0
	nft := IPTables{e, VariantNFT}
	for _, v6 := range []bool{false, true} {
		for _, name := range iptTables {
			if !nft.mayHave(v6, name, hooksOf[name]...) {
				continue
			}
			if t, err := nft.read(ctx, v6, name); err == nil { // else it cannot be the one to use
				u.nft += t.count(strange)
			}
		}
	}
	return u, e.countLegacy(ctx, &u, strange)
}

// hooksOf are chains that a table of iptables has if it has any.
var hooksOf = map[string][]string{"filter": {"FORWARD", "INPUT"}, "nat": {"PREROUTING", "POSTROUTING"}, "mangle": {"PREROUTING"}, "raw": {"PREROUTING"}, "security": {"FORWARD"}}

// strange reports that a rule is none of a CNI plugin's.
func strange(chain, rule string) bool {
	return !strings.HasPrefix(chain, "CNI-") && !strings.Contains(rule, "-j CNI-") && !strings.HasPrefix(comment(rule), guardComment(""))
}

func (t table) count(which func(chain, rule string) bool) (n int) {
	for chain, rules := range t.chains {
		for _, r := range rules {
			if which(chain, r) {
				n++
			}
		}
	}
	return n
}

func isIPTables(c rtnl.NFTChain) bool {
	return (c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6) && slices.Contains(iptTables, c.Table)
}

// isNative reports that a chain is somebody's who works with nftables proper, on
// the way of packets between networks: macspoofchk has one for bridges on any node.
func isNative(c rtnl.NFTChain) bool {
	ip := c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET
	return ip && !slices.Contains([]string{nftPortTable, nftMasqTable, nftFirewallTable, nftGuardTable}, c.Table)
}

func (e env) countLegacy(ctx context.Context, u *use, which func(chain, rule string) bool) error {
	legacy := IPTables{e, VariantLegacy}
	for _, v6 := range []bool{false, true} {
		names, err := e.kernel.LegacyTables(v6)
		if err != nil {
			return err
		}
		for _, name := range names {
			t, err := legacy.read(ctx, v6, name)
			if err != nil {
				continue // tables without the tool to read them: it cannot be the one to use
			}
			u.legacy += t.count(which)
			if slices.ContainsFunc(hints, t.has) {
				u.hint = VariantLegacy
			}
		}
	}
	return nil
}

// prefer says what use speaks for: the tool, the variant, why, and whether it is
// a fact rather than a default.
func (u use) prefer() (name, why string, fact bool) {
	counts := fmt.Sprintf("%d rules of iptables-nft, %d of iptables-legacy, %d of nftables", u.nft, u.legacy, u.native)
	switch {
	case u.hint != "":
		return NameIPTables + "-" + u.hint, "Kubernetes marked its tables as iptables-" + u.hint, true
	case u.legacy > u.nft:
		return NameIPTablesLegacy, "the node has " + counts, true
	case u.nft > 0:
		return NameIPTablesNFT, "the node has " + counts, true
	case u.native > 0:
		return NameNFTables, "the node has " + counts, true
	}
	return "", "no tables are in use", false
}
