// SPDX-License-Identifier: Apache-2.0

// Package edt is the typed view of the maps about limited rates: sl_edt_limits, one entry for each limited direction of an
// attachment, known by a number that its filter carries, and sl_edt_cidrs, the networks that a limit is for, or not for. The
// loader makes and removes entries; programs change clocks and counters. A view does not own its map.
package edt

import (
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Flags of a limit.
const (
	FlagEgress   = uint32(bpfgen.TypesSlEdtFlagSL_EDT_EGRESS)
	FlagListed   = uint32(bpfgen.TypesSlEdtFlagSL_EDT_ONLY)
	FlagUnlisted = uint32(bpfgen.TypesSlEdtFlagSL_EDT_EXCEPT)
	FlagPolice   = uint32(bpfgen.TypesSlEdtFlagSL_EDT_POLICE)
)

// Limit is one direction of one attachment. Rate is in bytes a second, times are in ns.
type Limit bpfgen.TypesSlEdtLimit

// Limits is the view of sl_edt_limits.
type Limits struct{ m *bpfsys.Map }

// NewLimits returns a view of m.
func NewLimits(m *bpfsys.Map) Limits { return Limits{m} }

// Put writes the entry of a number; clocks and counters start anew. E2BIG: the map is full.
func (l Limits) Put(number uint32, v *Limit) error { return bpfsys.Put(l.m, number, *v) }

// Get returns the entry of a number; false when there is none.
func (l Limits) Get(number uint32) (Limit, bool, error) { return bpfsys.Lookup[Limit](l.m, number) }

// Delete removes the entry of a number; missing is success.
func (l Limits) Delete(number uint32) error { return bpfsys.Remove(l.m, number) }

// All returns every limit by its number. Counters of one entry are of about the same moment.
func (l Limits) All() (map[uint32]Limit, error) {
	all := make(map[uint32]Limit)
	err := codec.Each(l.m, func(k *uint32, v *Limit) bool {
		all[*k] = *v
		return true
	})
	return all, err
}

// Len returns the number of limits.
func (l Limits) Len() (int, error) { return codec.Count[uint32, Limit](l.m) }

// Nets is the view of sl_edt_cidrs.
type Nets struct{ m *bpfsys.Map }

// NewNets returns a view of m.
func NewNets(m *bpfsys.Map) Nets { return Nets{m} }

type netKey bpfgen.TypesSlEdtCidr

// numberBits are the bits of a key that stand for the number, before those of the address.
const numberBits = 32

func key(number uint32, p netip.Prefix) netKey {
	return netKey{PrefixLen: numberBits + uint32(codec.PrefixLen(p)), Number: number, Ip: codec.Addr(p.Addr())}
}

// Put adds a network to those of a number. ENOSPC: the map is full.
func (n Nets) Put(number uint32, p netip.Prefix) error {
	return bpfsys.Put(n.m, key(number, p), uint32(1))
}

// Of returns the networks of a number.
func (n Nets) Of(number uint32) ([]netip.Prefix, error) {
	var out []netip.Prefix
	err := codec.Each(n.m, func(k *netKey, _ *uint32) bool {
		if k.Number == number {
			out = append(out, codec.FromPrefix(codec.FromAddr(k.Ip), uint8(k.PrefixLen-numberBits)))
		}
		return true
	})
	return out, err
}

// Delete removes networks of a number; missing is success.
func (n Nets) Delete(number uint32, nets []netip.Prefix) error {
	var errs []error
	for _, p := range nets {
		errs = append(errs, bpfsys.Remove(n.m, key(number, p)))
	}
	return errors.Join(errs...)
}

// Clear removes all networks of a number; none is success. It reads the whole map.
func (n Nets) Clear(number uint32) error {
	var stale []netKey
	err := codec.Each(n.m, func(k *netKey, _ *uint32) bool {
		if k.Number == number {
			stale = append(stale, *k)
		}
		return true
	})
	errs := []error{err}
	for _, k := range stale {
		errs = append(errs, bpfsys.Remove(n.m, k))
	}
	return errors.Join(errs...)
}

// Len returns the number of networks of all limits.
func (n Nets) Len() (int, error) { return codec.Count[netKey, uint32](n.m) }
