// SPDX-License-Identifier: Apache-2.0

// Package denylist is the typed view of the denylist: networks that nothing may come from. Entries are the loader's; programs count
// in them. A view does not own its map.
package denylist

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Map is the view of sl_denylist.
type Map struct{ m *bpfsys.Map }

// New returns a view of m.
func New(m *bpfsys.Map) Map { return Map{m} }

func key(p netip.Prefix) bpfgen.TypesSlCidr {
	p = p.Masked()
	return bpfgen.TypesSlCidr{PrefixLen: uint32(codec.PrefixLen(p)), Ip: codec.Addr(p.Addr())}
}

// Add puts networks in; one that is there keeps its count. ENOSPC: the map is full. The error names the network.
func (m Map) Add(networks ...netip.Prefix) error {
	have, err := m.All() // once: there is no other way to know what is there, see Get
	if err != nil {
		return err
	}
	for _, p := range networks {
		if _, ok := have[p.Masked()]; ok {
			continue
		}
		if err := bpfsys.Put(m.m, key(p), uint64(0)); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		have[p.Masked()] = 0
	}
	return nil
}

// Get returns the packets dropped for exactly this network; false when it is not in the list. (A lookup alone finds the
// longest network that holds this one.)
func (m Map) Get(p netip.Prefix) (uint64, bool, error) {
	all, err := m.All()
	n, ok := all[p.Masked()]
	return n, ok, err
}

// Delete takes a network out and reports whether it was in.
func (m Map) Delete(p netip.Prefix) (bool, error) {
	return bpfsys.Delete(m.m, key(p))
}

// Empty reports whether the list holds nothing.
func (m Map) Empty() (bool, error) {
	_, ok, err := bpfsys.NextKey[bpfgen.TypesSlCidr](m.m, nil)
	return !ok && err == nil, err
}

// All returns the networks with the packets dropped for each.
func (m Map) All() (map[netip.Prefix]uint64, error) {
	all := make(map[netip.Prefix]uint64)
	err := codec.Each(m.m, func(k *bpfgen.TypesSlCidr, n *uint64) bool {
		a := codec.FromAddr(k.Ip)
		if k.PrefixLen < 96 && a.Is4() { // "::/n" beyond the v4-mapped addresses
			a = netip.AddrFrom16(k.Ip)
		}
		all[codec.FromPrefix(a, uint8(k.PrefixLen))] = *n
		return true
	})
	return all, err
}
