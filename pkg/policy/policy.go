// SPDX-License-Identifier: Apache-2.0

// Package policy is what a pod may be reached by and what it may reach: the firewall plugin's ingressPolicy and rules, parsed
// and validated, and as the flat list that backends carry out. It knows no backend and owns no state.
package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Mode is ingressPolicy, which keeps pods of one node apart by their bridges.
type Mode string

// The modes. Two pods on different bridges that both have a mode other than ModeOpen cannot talk.
const (
	ModeOpen       Mode = "open"
	ModeSameBridge Mode = "same-bridge" // pods of the same bridge reach each other
	ModeIsolated   Mode = "isolated"    // nor do they
)

// Policy is what one attachment asks for. The zero value restricts nothing.
type Policy struct {
	Mode    Mode // empty is ModeOpen
	Ingress []Rule
	Egress  []Rule

	// What no rule matches; the zero value is allow.
	DenyIngress, DenyEgress bool
}

// Rule is one rule as it was written. Within a direction the first that matches a connection decides about it.
type Rule struct {
	Allow    bool
	CIDRs    []netip.Prefix // of the other end; none matches every address
	Protocol Protocol
	Ports    []PortRange // of the end that the connection is opened to; none matches every port
}

// Protocol is the L4 protocol a rule is about.
type Protocol string

// ProtocolAny matches everything; with ports, everything that has some (TCP, UDP, SCTP). ProtocolICMP is ICMP for IPv4 and ICMPv6 for IPv6.
const (
	ProtocolAny  Protocol = ""
	ProtocolTCP  Protocol = "tcp"
	ProtocolUDP  Protocol = "udp"
	ProtocolSCTP Protocol = "sctp"
	ProtocolICMP Protocol = "icmp"
)

// PortRange is inclusive.
type PortRange struct{ First, Last uint16 }

// String returns "80" or "8000-8100".
func (r PortRange) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MaxEntries is how many entries the rules of both directions may become: each of a rule's CIDRs with each of its port ranges.
const MaxEntries = 256

// Entry is one network, one protocol, one range of ports.
type Entry struct {
	Allow  bool
	Prefix netip.Prefix // invalid: every address of the families in V4 and V6
	V4, V6 bool
	Proto  uint8      // IP protocol number; 0 is any
	Ports  *PortRange // nil: also what has no ports
	Number int        // index of the rule
}

// Empty reports whether the policy restricts nothing at all.
func (p *Policy) Empty() bool {
	return p == nil || !p.Restricts() && (p.Mode == "" || p.Mode == ModeOpen)
}

// Restricts reports whether there are rules, or a default that denies.
func (p *Policy) Restricts() bool {
	return len(p.Ingress) > 0 || len(p.Egress) > 0 || p.DenyIngress || p.DenyEgress
}

// CountEntries is the length of Entries, without building them: the number is the product of what a tenant writes.
func CountEntries(rules []Rule) int {
	n := 0
	for _, r := range rules {
		networks := max(1, len(r.CIDRs))
		if len(r.CIDRs) == 0 && r.Protocol == ProtocolICMP {
			networks = 2
		}
		n += networks * max(1, len(r.Ports))
	}
	return n
}

// Entries flattens the rules of one direction, in their order.
func Entries(rules []Rule) []Entry {
	var out []Entry
	for i, r := range rules {
		for _, n := range r.networks() {
			for _, e := range r.onPorts(n) {
				e.Allow, e.Number = r.Allow, i
				out = append(out, e)
			}
		}
	}
	return out
}

// networks returns an entry for each address family and network of r, with the protocol's number in that family.
func (r Rule) networks() []Entry {
	var out []Entry
	for _, c := range r.CIDRs {
		out = append(out, Entry{Prefix: c.Masked(), V4: c.Addr().Is4(), V6: c.Addr().Is6(), Proto: r.number(c.Addr().Is4())})
	}
	switch {
	case len(r.CIDRs) > 0:
	case r.Protocol == ProtocolICMP:
		out = []Entry{{V4: true, Proto: unix.IPPROTO_ICMP}, {V6: true, Proto: unix.IPPROTO_ICMPV6}}
	default:
		out = []Entry{{V4: true, V6: true, Proto: r.number(true)}}
	}
	return out
}

func (r Rule) number(v4 bool) uint8 {
	if r.Protocol == ProtocolICMP && !v4 {
		return unix.IPPROTO_ICMPV6
	}
	return ipproto.Number(string(r.Protocol))
}

func (r Rule) onPorts(e Entry) []Entry {
	if len(r.Ports) == 0 {
		return []Entry{e}
	}
	out := make([]Entry, 0, len(r.Ports))
	for _, p := range r.Ports {
		e.Ports = &p
		out = append(out, e)
	}
	return out
}

// WithoutBridge returns what the policy's mode means for a device that has no bridge on this node, but is on a network segment
// of its own: macvlan, ipvlan, vlan, a device of the host. ModeIsolated keeps the pod from the other addresses of its own
// subnets and of the link, but not from their gateways, by rules that come first. False: the mode means nothing there.
func (p *Policy) WithoutBridge(subnets []netip.Prefix, gateways []netip.Addr) (*Policy, bool) {
	if p == nil || p.Mode == "" || p.Mode == ModeOpen {
		return p, true
	}
	if p.Mode != ModeIsolated {
		return nil, false
	}
	var first []Rule
	for _, g := range gateways {
		first = append(first, Rule{Allow: true, CIDRs: []netip.Prefix{netip.PrefixFrom(g, g.BitLen())}})
	}
	var own []netip.Prefix
	for _, s := range subnets {
		own = append(own, s.Masked())
	}
	if len(own) > 0 {
		own = append(own, netip.MustParsePrefix("fe80::/10")) // every device has one, with an IPv6 address of ours or without
		first = append(first, Rule{CIDRs: own})
	}
	q := *p
	q.Mode = ModeOpen
	q.Ingress, q.Egress = slices.Concat(first, p.Ingress), slices.Concat(first, p.Egress)
	return &q, true
}
