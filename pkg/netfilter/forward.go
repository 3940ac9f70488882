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
	Answers bool // some rule accepts packets of connections that conntrack knows
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

// Accept is the command that lets packets pass which the chain does not accept:
// those with the mark, and answers. An answer to a connection that netfilter
// masquerades comes to an address of the node, so that no program can mark it.
func (c ForwardChain) Accept(mark uint32) string {
	rule := func(nft, iptables string) string {
		variant, isIPTables := strings.CutPrefix(c.Tool, NameIPTables+"-")
		if !isIPTables {
			return fmt.Sprintf("nft insert rule %s %s %s accept", c.Table, c.Chain, nft)
		}
		base := "ip6tables"
		if c.V4 {
			base = "iptables"
		}
		return fmt.Sprintf("%s-%s -I %s %s -j ACCEPT", base, variant, c.Chain, iptables)
	}
	var out []string
	if !c.Accepts {
		out = append(out, rule(fmt.Sprintf("meta mark and %#x == %#x", mark, mark), fmt.Sprintf("-m mark --mark %#x/%#x", mark, mark)))
	}
	if !c.Answers {
		out = append(out, rule("ct state established,related", MatchAnswers))
	}
	return strings.Join(out, "; ")
}

// MatchAnswers matches packets of connections that netfilter conntrack knows, in
// the words of iptables.
const MatchAnswers = "-m conntrack --ctstate RELATED,ESTABLISHED"
