// SPDX-License-Identifier: Apache-2.0

// Package drops is the typed view of what is said of dropped packets: counters and events. Programs count, each on its own CPU;
// no code resets them.
package drops

import "github.com/sluice-cni/sluice/pkg/bpfsys"

// Drops is the view of sl_drop_reasons.
type Drops struct{ m *bpfsys.Map }

// NewDrops returns a view of m.
func NewDrops(m *bpfsys.Map) Drops { return Drops{m} }

// Get returns the packets dropped for r since the maps were made, summed over all CPUs.
func (d Drops) Get(r Reason) (uint64, error) {
	perCPU, err := bpfsys.LookupPerCPU[uint64](d.m, uint32(r))
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// All returns the counters of every reason that this build knows and the map has, except none.
func (d Drops) All() (map[Reason]uint64, error) {
	all := make(map[Reason]uint64)
	for r := Reason(1); r < Max && uint32(r) < d.m.MaxEntries(); r++ {
		n, err := d.Get(r)
		if err != nil {
			return nil, err
		}
		all[r] = n
	}
	return all, nil
}
