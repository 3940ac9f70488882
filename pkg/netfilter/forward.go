// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"strings"
)

// ForwardChain is a chain that drops what is forwarded unless a rule accepts it.
type ForwardChain struct {
	Tool    string // as records call it: iptables-nft, iptables-legacy or nftables
	V4, V6  bool   // families that it sees
	Table   string // of nftables, with its family: "inet filter"
	Chain   string
	Accepts bool // some rule of the table accepts packets with the mark
}

// String names the chain for people.
func (c ForwardChain) String() string {
	switch {
	case c.Tool == NameNFTables:
		return fmt.Sprintf("the chain %s of the nftables table %s", c.Chain, c.Table)
	case c.V6:
		return fmt.Sprintf("the chain %s of %s, IPv6,", c.Chain, c.Tool)
	}
	return fmt.Sprintf("the chain %s of %s, IPv4,", c.Chain, c.Tool)
}

// Accept is the command that lets packets with the mark pass.
func (c ForwardChain) Accept(mark uint32) string {
	variant, isIPTables := strings.CutPrefix(c.Tool, NameIPTables+"-")
	if !isIPTables {
		return fmt.Sprintf("nft insert rule %s %s meta mark and %#x == %#x accept", c.Table, c.Chain, mark, mark)
	}
	base := "ip6tables"
	if c.V4 {
		base = "iptables"
	}
	return fmt.Sprintf("%s-%s -I %s -m mark --mark %#x/%#x -j ACCEPT", base, variant, c.Chain, mark, mark)
}
