// SPDX-License-Identifier: Apache-2.0

package ratelimit

import (
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
)

// kind is what an owner has one limit of.
const kind = edt.FlagEgress | edt.FlagPolice

// kinds are the values of kind.
func kinds() []uint32 { return []uint32{0, edt.FlagEgress, edt.FlagEgress | edt.FlagPolice} }

// number returns one that is free. Free begins at a random one, and few are taken.
func (rl Limits) number(m views) (uint32, error) {
	var failed error
	number, err := podnsmap.Free(func(n uint32) bool {
		_, taken, err := m.limits.Get(n)
		failed = err
		return err == nil && (taken || pintree.Exists(rl.Paths.EDTMark(n)))
	})
	if failed != nil {
		return 0, fmt.Errorf("limits: %w", failed)
	}
	return number, err
}

// of returns the limits of owner among kinds, by number. A tree that was loaded by a build without links is read as a whole.
func (rl Limits) of(m views, owner uint64, kinds ...uint32) (map[uint32]edt.Limit, error) {
	out := make(map[uint32]edt.Limit)
	if !pintree.AllLinked(rl.Paths.EDT()) {
		all, err := m.limits.All()
		if err != nil {
			return nil, fmt.Errorf("limits: %w", err)
		}
		for number, l := range all {
			if l.Owner == owner && slices.Contains(kinds, l.Flags&kind) {
				out[number] = l
			}
		}
		return out, nil
	}
	for _, k := range kinds {
		number, linked := pintree.Linked(rl.Paths.EDT(), owner, k)
		if !linked {
			continue
		}
		l, ok, err := m.limits.Get(number)
		if err != nil {
			return nil, fmt.Errorf("limit %d: %w", number, err)
		}
		if ok && l.Owner == owner && l.Flags&kind == k {
			out[number] = l
		}
	}
	return out, nil
}

// LinkOwners gives each limit its link. The load calls it: a former build may have made limits.
func (rl Limits) LinkOwners() error {
	m, err := rl.views()
	if err != nil {
		return err
	}
	all, err := m.limits.All()
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	for number, l := range all {
		if err := pintree.LinkOwner(rl.Paths.EDT(), l.Owner, l.Flags&kind, number); err != nil {
			return fmt.Errorf("note limit %d: %w", number, err)
		}
	}
	return pintree.NoteAllLinked(rl.Paths.EDT())
}
