// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/hostport"
)

// Key names a hostPort.
type Key = hostport.Key

// Mapping is one hostPort and the pod's port that it leads to.
type Mapping struct {
	Key
	PodIP   netip.Addr
	PodPort uint16
	SNAT    bool // hairpin and 127.0.0.1: the pod sees an address of the node
	MasqAll bool // with SNAT: for every client

	AllowedSources []netip.Prefix // who may connect; empty: everybody
	Conditions     Conditions
}

// Conditions narrow what a mapping is for. Zero ones always hold. A packet that does not meet them is not for the mapping.
type Conditions struct {
	Source    netip.Prefix
	Dest      netip.Prefix
	InDevice  string // device of the node that the packet came in by
	NotSource bool
	NotDest   bool
	NotIn     bool

	// InIfindex is the index of InDevice. The map has only this one: the loader fills in the other.
	InIfindex uint32
}

// String returns the mapping in words, for messages.
func (m Mapping) String() string {
	s := fmt.Sprintf("%s to %s", m.Key, netip.AddrPortFrom(m.PodIP, m.PodPort))
	if m.SNAT {
		s += " snat"
	}
	if m.MasqAll {
		s += " masqAll"
	}
	if len(m.AllowedSources) > 0 {
		s += fmt.Sprintf(" from %v", m.AllowedSources)
	}
	if m.Conditions != (Conditions{}) {
		s += fmt.Sprintf(" if %+v", m.Conditions)
	}
	return s
}

// Validate says what is wrong with m; nil: it can be published.
func (m Mapping) Validate() error {
	switch {
	case !m.HostIP.IsValid() || !m.PodIP.IsValid() || m.PodIP.IsUnspecified():
		return fmt.Errorf("published port %d: not an address", m.Port)
	case m.HostIP.Unmap().Is4() != m.PodIP.Unmap().Is4():
		return fmt.Errorf("published port %s: the pod's address %s is of the other family", m.Key, m.PodIP)
	case m.Port == 0 || m.PodPort == 0 || m.Proto == 0:
		return fmt.Errorf("published port %s: no port or protocol", m.Key)
	}
	if slices.ContainsFunc(m.AllowedSources, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return fmt.Errorf("published port %s: a source is not a network", m.Key)
	}
	return nil
}

// Entry is a mapping in force: an element of the map.
type Entry struct {
	Mapping
	Owner      uint64
	Generation uint64 // changes with every replacement; flows made by another one are dead

	// Allowlist is the name of the list of AllowedSources, 0: all may connect. The map has only this one.
	Allowlist uint64
}

// String returns the entry in words, for messages.
func (e Entry) String() string {
	return fmt.Sprintf("%s (owner %x, generation %d, allowlist %x)", e.Mapping, e.Owner, e.Generation, e.Allowlist)
}

// NewEntry returns m as an entry. The index of the device in its conditions must be there. Bits behind the length of a network do
// not count.
func NewEntry(m Mapping, owner, generation uint64) Entry {
	m.Key, m.PodIP = m.Key.Unmap(), m.PodIP.Unmap()
	m.AllowedSources = masked(m.AllowedSources)
	m.Conditions.Source, m.Conditions.Dest = m.Conditions.Source.Masked(), m.Conditions.Dest.Masked()
	return Entry{Mapping: m, Owner: owner, Generation: generation, Allowlist: AllowlistID(m.AllowedSources)}
}

// NewClaim returns the entry that leaves k to netfilter. No endpoint has its unspecified pod address, so that the programs pass every
// packet for k to the node's stack: the rules of owner are there.
func NewClaim(k Key, owner, generation uint64) Entry {
	k = k.Unmap()
	pod := netip.IPv6Unspecified()
	if k.HostIP.Is4() {
		pod = netip.IPv4Unspecified()
	}
	return Entry{Mapping: Mapping{Key: k, PodIP: pod, PodPort: k.Port}, Owner: owner, Generation: generation}
}

// IsClaim reports whether e leaves its key to netfilter.
func (e Entry) IsClaim() bool { return e.PodIP.IsUnspecified() }

// Equal reports whether both are the same element of the map. What the map does not hold does not count: the names of devices and
// the networks of the allowlist.
func (e Entry) Equal(o Entry) bool { return rawKey(e.Key) == rawKey(o.Key) && e.raw() == o.raw() }

func masked(nets []netip.Prefix) []netip.Prefix {
	if len(nets) == 0 {
		return nil
	}
	out := make([]netip.Prefix, 0, len(nets))
	for _, p := range nets {
		out = append(out, p.Masked())
	}
	return out
}
