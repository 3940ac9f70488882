// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// AllowlistID returns the name of a list of allowed sources. It is a hash of the networks, so equal lists share their entries. 0 is no
// list. The networks must be masked.
func AllowlistID(nets []netip.Prefix) uint64 {
	if len(nets) == 0 {
		return 0
	}
	h := sha256.New()
	for _, p := range Canonical(nets) {
		fmt.Fprintln(h, p)
	}
	return max(2, binary.BigEndian.Uint64(h.Sum(nil))&^1)
}

// AllowlistSize is how many entries the lists of ports take in sl_hp_allowlist: equal lists share theirs.
func AllowlistSize(ports []Mapping) int {
	n, seen := 0, make(map[uint64]bool)
	for _, p := range ports {
		if list := AllowlistID(p.AllowedSources); list != 0 && !seen[list] {
			seen[list] = true
			n += len(Canonical(p.AllowedSources))
		}
	}
	return n
}

// Canonical returns nets in order, each once.
func Canonical(nets []netip.Prefix) []netip.Prefix {
	nets = slices.Clone(nets)
	slices.SortFunc(nets, func(a, b netip.Prefix) int {
		if n := a.Addr().Compare(b.Addr()); n != 0 {
			return n
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(nets)
}

// Allowlists is the view of sl_hp_allowlist, the lists of allowed sources.
type Allowlists struct{ m *bpfsys.Map }

// NewAllowlists returns a view of m.
func NewAllowlists(m *bpfsys.Map) Allowlists { return Allowlists{m} }

func allowlistKey(list uint64, p netip.Prefix) bpfgen.TypesSlAllowedSource {
	k := bpfgen.TypesSlAllowedSource{PrefixLen: 64 + uint32(codec.PrefixLen(p)), Ip: codec.Addr(p.Addr())}
	if p.Addr().Is4() {
		list |= 1
	}
	binary.NativeEndian.PutUint64(k.List[:], list)
	return k
}

// Put makes the list of nets and returns its name. ENOSPC: the map is full.
func (a Allowlists) Put(nets []netip.Prefix) (uint64, error) {
	list := AllowlistID(nets)
	for _, p := range nets {
		if err := bpfsys.Put(a.m, allowlistKey(list, p), uint32(1)); err != nil {
			return 0, err
		}
	}
	return list, nil
}

// Has reports whether the list of nets is there, whole.
func (a Allowlists) Has(nets []netip.Prefix) (bool, error) {
	all, err := a.All()
	if err != nil {
		return false, err
	}
	return slices.Equal(all[AllowlistID(nets)], Canonical(nets)), nil
}

// All returns every list by its name.
func (a Allowlists) All() (map[uint64][]netip.Prefix, error) {
	all := make(map[uint64][]netip.Prefix)
	err := codec.Each(a.m, func(k *bpfgen.TypesSlAllowedSource, _ *uint32) bool {
		list := binary.NativeEndian.Uint64(k.List[:]) &^ 1
		all[list] = append(all[list], codec.FromPrefix(codec.FromAddr(k.Ip), uint8(k.PrefixLen-64)))
		return true
	})
	for list, nets := range all {
		all[list] = Canonical(nets)
	}
	return all, err
}

// Len returns the number of networks in all lists.
func (a Allowlists) Len() (int, error) { return codec.Count[bpfgen.TypesSlAllowedSource, uint32](a.m) }

// Keep deletes the lists that used does not have.
func (a Allowlists) Keep(used map[uint64]bool) error {
	all, err := a.All()
	if err != nil {
		return err
	}
	for list, nets := range all {
		if used[list] {
			continue
		}
		for _, p := range nets {
			if err := bpfsys.Remove(a.m, allowlistKey(list, p)); err != nil {
				return err
			}
		}
	}
	return nil
}
