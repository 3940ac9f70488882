// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/hostport"
)

// DefaultMarkBit is upstream's default of markMasqBit.
const DefaultMarkBit = 13

// Mapping is one hostPort and the pod's port that it leads to.
type Mapping struct {
	hostport.Key
	PodIP   netip.Addr `json:"podIP,omitzero"`
	PodPort uint16     `json:"podPort,omitempty"`
}

// Ports is what an attachment wants published.
type Ports struct {
	Ref      attachments.ID
	Mappings []Mapping
	// Before is what an earlier ADD of the attachment published, maybe for
	// another address. It goes.
	Before []Mapping
	// Spare is what the container's other attachments hold. Their rules stay.
	Spare []Held
	// ThirdParty says that another suite may have made the rules, with an order
	// and a number of its own. CHECK then wants each port to lead to the pod.
	ThirdParty bool
	// Pod are the pod's addresses with their prefix lengths: connections from
	// its own subnet are masqueraded with SNAT.
	Pod []netip.Prefix
	// SNAT masquerades connections from the pod's own subnet and from 127.0.0.1.
	// With MasqAll too, it masquerades all connections.
	SNAT, MasqAll bool
	// MarkBit marks what iptables has to masquerade, 0-31. With MarkChain that
	// chain sets a mark, and a third party masquerades.
	MarkBit   int
	MarkChain string
	// Conditions are further match words in the tool's own language.
	ConditionsV4, ConditionsV6 []string
}

// Conditions returns the conditions of one family.
func (p *Ports) Conditions(v6 bool) []string {
	if v6 {
		return p.ConditionsV6
	}
	return p.ConditionsV4
}

// Subnet is the network of the pod's address, or the address alone if Pod does
// not have it.
func (p *Ports) Subnet(pod netip.Addr) netip.Prefix {
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
	// Spare is what the container's other attachments hold. Their rules stay, even
	// if they carry the name.
	Spare []Held
}

// SpareMappings are the ports that the container's other attachments hold: those of
// the network, or with an empty name those of all networks.
func SpareMappings(spare []Held, network string) []Mapping {
	var out []Mapping
	for _, h := range spare {
		if network == "" || h.Ref.Network == network {
			out = append(out, h.Mappings...)
		}
	}
	return out
}

// OfFamily returns the mappings of one family.
func OfFamily(mappings []Mapping, v6 bool) []Mapping {
	var out []Mapping
	for _, m := range mappings {
		if m.PodIP.Is6() == v6 {
			out = append(out, m)
		}
	}
	return out
}

// Families says which families the addresses have: false is IPv4, true IPv6.
func Families(addrs []netip.Prefix) []bool {
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

// AnyAddr stands for every local address of the family.
func AnyAddr(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
