// SPDX-License-Identifier: Apache-2.0

// Package netfilter carries out hostPorts, masquerading and the firewall by
// iptables (nft and legacy variant) and nftables, where eBPF cannot run or is
// not wanted.
//
// Chains, tables and comments have the names of the upstream plugins v1.9.1,
// so that either suite cleans up what the other made. Every change of a table
// is one transaction (iptables-restore --noflush, nft -f), read before and tried
// again when somebody else changed the table meanwhile; nothing is run when
// there is nothing to do, and no wait is without bound. The package owns those
// rules and the decision which of the tools a node uses (/run/sluice); it keeps
// no other state: what an attachment has is in the plugins' records.
package netfilter

import (
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

var (
	// ErrBusy says that somebody else held the lock of the tables, or changed
	// them, for longer than we wait. The same call may succeed later.
	ErrBusy = errors.New("netfilter tables are busy")
	// ErrUnusable says that the tool is missing or the kernel refuses it.
	ErrUnusable = errors.New("netfilter tool cannot be used")
	// ErrDiffers says that rules are missing or not those that were made.
	ErrDiffers = errors.New("netfilter rules differ")
)

// Names of the backends, as in configurations and records.
const (
	NameIPTables  = "iptables"
	NameNFTables  = "nftables"
	NameFirewalld = "firewalld"

	// Recorded names of the two variants of iptables.
	NameIPTablesNFT    = "iptables-nft"
	NameIPTablesLegacy = "iptables-legacy"
)

// DefaultMarkBit is upstream's default of markMasqBit.
const DefaultMarkBit = 13

// Mapping is one published port.
type Mapping struct {
	HostIP   netip.Addr // unspecified of its family: every local address
	Proto    uint8      // IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP
	HostPort uint16
	PodIP    netip.Addr
	PodPort  uint16
}

// Ports is what an attachment wants published.
type Ports struct {
	Ref      attachments.ID
	Mappings []Mapping
	// Before is what an earlier ADD of the attachment published, maybe for
	// another address. It goes.
	Before []Mapping
	// Spare are addresses of the container's other attachments, whose rules stay.
	Spare []netip.Addr
	// Stranger says that another suite may have made the rules, which has its own
	// order, and its own number of them: CHECK wants each port to lead to the pod.
	Stranger bool
	// Pod are the pod's addresses with their prefix lengths: connections from
	// its own subnet are masqueraded with SNAT.
	Pod []netip.Prefix
	// SNAT masquerades connections of the pod's own subnet and of 127.0.0.1,
	// MasqAll, with SNAT, those of everybody.
	SNAT, MasqAll bool
	// MarkBit marks what iptables has to masquerade, 0-31. With MarkChain that
	// chain sets a mark, and somebody else masquerades.
	MarkBit   int
	MarkChain string
	// Conditions are further match words in the tool's own language.
	ConditionsV4, ConditionsV6 []string
}

func (p *Ports) conditions(v6 bool) []string {
	if v6 {
		return p.ConditionsV6
	}
	return p.ConditionsV4
}

// of returns the mappings of one family.
func of(mappings []Mapping, v6 bool) []Mapping {
	var out []Mapping
	for _, m := range mappings {
		if m.PodIP.Is6() == v6 {
			out = append(out, m)
		}
	}
	return out
}

// subnet is the network of the pod's address, the address alone if it is not
// listed.
func (p *Ports) subnet(pod netip.Addr) netip.Prefix {
	for _, s := range p.Pod {
		if s.Addr() == pod {
			return s.Masked()
		}
	}
	return netip.PrefixFrom(pod, pod.BitLen())
}

// Held is what is known of an attachment's ports at DEL. A nil Mappings means
// that nothing is known: all that carries the attachment's name goes.
type Held struct {
	Ref      attachments.ID
	Mappings []Mapping
	// Spare are addresses of the container's other attachments; rules that lead
	// to them stay, even if they carry the name.
	Spare []netip.Addr
}

// families says which families addresses have.
func families(addrs []netip.Prefix) []bool {
	var has [2]bool
	for _, a := range addrs {
		if a.Addr().Is6() {
			has[1] = true
		} else {
			has[0] = true
		}
	}
	var out []bool
	for i, h := range has {
		if h {
			out = append(out, i == 1)
		}
	}
	return out
}
