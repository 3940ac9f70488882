// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

type entry struct {
	key   bpfgen.TypesSlTuple
	value bpfgen.TypesSlCtEntry
}

// records returns the records, not the indexes, that match.
func (m Map) records(match func(*Record) bool) ([]entry, error) {
	var found []entry
	err := m.eachRaw(func(k *bpfgen.TypesSlTuple, v *bpfgen.TypesSlCtEntry) bool {
		if r := decode(k, v); !r.IsIndex() && match(r) {
			found = append(found, entry{*k, *v})
		}
		return true
	})
	return found, err
}

// Unlearn makes matching connections learn their way anew: every packet goes by the stack until both directions have been
// confirmed, the policy is asked again, and the FIB too. Translations stay. It returns how many there were. A packet that is
// counted at the same moment may not be.
func (m Map) Unlearn(match func(*Record) bool) (int, error) {
	return m.change(match, func(v *bpfgen.TypesSlCtEntry) {
		v.Flags &^= uint32(txFirst | txConfirm | rxFirst | rxConfirm | localPeer)
		v.NexthopUntil, v.Policy, v.OutIfindex = 0, 0, 0
	})
}

// AskAgain has the policies asked about matching connections when their next packet comes. It returns how many there were. A packet that
// is counted at the same moment may not be.
func (m Map) AskAgain(match func(*Record) bool) (int, error) {
	return m.change(match, func(v *bpfgen.TypesSlCtEntry) { v.Policy = 0 })
}

func (m Map) change(match func(*Record) bool, edit func(*bpfgen.TypesSlCtEntry)) (int, error) {
	found, err := m.records(match)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range found {
		edit(&e.value)
		was, err := bpfsys.Replace(m.m, e.key, e.value)
		if err != nil {
			return n, err
		}
		if was {
			n++
		}
	}
	return n, nil
}

// Delete removes matching connections, and from every one of maps what leads to them from outside. It returns how many there
// were.
func (m Map) Delete(match func(*Record) bool, maps ...Map) (int, error) {
	found, err := m.records(match)
	if err != nil {
		return 0, err
	}
	for i, e := range found {
		for _, other := range maps {
			if err := other.deleteIndex(&e.value.Other, e.value.Owner); err != nil {
				return i, err
			}
		}
		if err := bpfsys.Remove(m.m, e.key); err != nil {
			return i, err
		}
	}
	return len(found), nil
}

func (m Map) deleteIndex(key *bpfgen.TypesSlTuple, owner uint64) error {
	v, ok, err := bpfsys.Lookup[bpfgen.TypesSlCtEntry](m.m, *key)
	if ok && Flags(v.Flags)&index != 0 && v.Owner == owner {
		err = bpfsys.Remove(m.m, *key)
	}
	return err
}
