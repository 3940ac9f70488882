// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
)

// limitKind is what an owner has one limit of.
const limitKind = edt.FlagEgress | edt.FlagPolice

// limitKinds are the values of limitKind.
func limitKinds() []uint32 { return []uint32{0, edt.FlagEgress, edt.FlagEgress | edt.FlagPolice} }

// freeLimitNumber returns one that is free. Free begins at a random one, and few are taken.
func (d *Datapath) freeLimitNumber(m limitMaps) (uint32, error) {
	var failed error
	number, err := podnsmap.Free(func(n uint32) bool {
		_, taken, err := m.limits.Get(n)
		failed = err
		return err == nil && (taken || pintree.Exists(d.tree.Paths.EDTMark(n)))
	})
	if failed != nil {
		return 0, fmt.Errorf("limits: %w", failed)
	}
	return number, err
}

// limitsOf returns the limits of owner among kinds, by number. A tree that was loaded by a build without links is read as a whole.
func (d *Datapath) limitsOf(m limitMaps, owner uint64, kinds ...uint32) (map[uint32]edt.Limit, error) {
	out := make(map[uint32]edt.Limit)
	if !pintree.AllLinked(d.tree.Paths.EDT()) {
		all, err := m.limits.All()
		if err != nil {
			return nil, fmt.Errorf("limits: %w", err)
		}
		for number, l := range all {
			if l.Owner == owner && slices.Contains(kinds, l.Flags&limitKind) {
				out[number] = l
			}
		}
		return out, nil
	}
	for _, k := range kinds {
		number, linked := pintree.Linked(d.tree.Paths.EDT(), owner, k)
		if !linked {
			continue
		}
		l, ok, err := m.limits.Get(number)
		if err != nil {
			return nil, fmt.Errorf("limit %d: %w", number, err)
		}
		if ok && l.Owner == owner && l.Flags&limitKind == k {
			out[number] = l
		}
	}
	return out, nil
}

// linkLimitOwners gives each limit its link. The load calls it: a former build may have made limits.
func (d *Datapath) linkLimitOwners() error {
	m, err := d.limitMaps()
	if err != nil {
		return err
	}
	all, err := m.limits.All()
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	for number, l := range all {
		if err := pintree.LinkOwner(d.tree.Paths.EDT(), l.Owner, l.Flags&limitKind, number); err != nil {
			return fmt.Errorf("note limit %d: %w", number, err)
		}
	}
	return pintree.NoteAllLinked(d.tree.Paths.EDT())
}
