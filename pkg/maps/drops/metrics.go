// SPDX-License-Identifier: Apache-2.0

// Package drops is the typed view of what is said of dropped packets: counters and events. Programs count, each on its own CPU;
// no code resets them.
package drops

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Drops is the view of sl_drop_reasons.
type Drops struct{ m *bpfsys.Map }

// NewDrops returns a view of m.
func NewDrops(m *bpfsys.Map) Drops { return Drops{m} }

// Sum is the number of packets dropped for a reason, by direction.
type Sum struct {
	ToPods   uint64 // toward a pod, or that came in by an uplink
	FromPods uint64 // that a pod sent, or that would have left by an uplink
}

// Total is the number of packets in both directions.
func (s Sum) Total() uint64 { return s.ToPods + s.FromPods }

// Get returns the packets dropped for r since the maps were made, summed over all CPUs. Programs of builds without directions
// count all as ToPods.
func (d Drops) Get(r Reason) (Sum, error) {
	to, err := d.at(uint32(r))
	if err != nil {
		return Sum{}, err
	}
	from, err := d.at(uint32(r) + uint32(bpfgen.TypesSlDropDirectionSL_DROP_FROM_PODS))
	return Sum{ToPods: to, FromPods: from}, err
}

func (d Drops) at(index uint32) (uint64, error) {
	perCPU, err := bpfsys.LookupPerCPU[uint64](d.m, index)
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// All returns the counters of every reason that this build knows, except none.
func (d Drops) All() (map[Reason]Sum, error) {
	all := make(map[Reason]Sum)
	for r := Reason(1); r < Max; r++ {
		n, err := d.Get(r)
		if err != nil {
			return nil, err
		}
		all[r] = n
	}
	return all, nil
}
