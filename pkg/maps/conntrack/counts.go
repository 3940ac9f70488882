// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Counts are how often entries were made since the maps were, and what became of them. Reverse entries do not count. A connection
// between two pods of the node has two entries. What the kernel evicts from an LRU map, and what is idle for too long, no program sees.
type Counts struct {
	ByClient uint64 // made for a connection that a client opens
	ByPod    uint64 // made for a connection that a pod opens
	Fin      uint64 // TCP connections that ended by a FIN of each end
	Rst      uint64 // TCP connections that ended by a RST
	Evicted  uint64 // taken from an attachment with many places, for another one
	Restored uint64 // taken by the kernel, and made again by their reverse entry
}

// Counters is the view of sl_ct_counts.
type Counters struct{ m *bpfsys.Map }

// NewCounters returns a view of m.
func NewCounters(m *bpfsys.Map) Counters { return Counters{m} }

// Read returns the counts, summed over all CPUs.
func (c Counters) Read() (Counts, error) {
	var n Counts
	for what, to := range map[bpfgen.TypesSlCtCount]*uint64{
		bpfgen.TypesSlCtCountSL_CT_COUNT_CLIENT: &n.ByClient, bpfgen.TypesSlCtCountSL_CT_COUNT_POD: &n.ByPod,
		bpfgen.TypesSlCtCountSL_CT_COUNT_FIN: &n.Fin, bpfgen.TypesSlCtCountSL_CT_COUNT_RST: &n.Rst,
		bpfgen.TypesSlCtCountSL_CT_COUNT_EVICTED: &n.Evicted, bpfgen.TypesSlCtCountSL_CT_COUNT_RESTORED: &n.Restored,
	} {
		perCPU, err := bpfsys.LookupPerCPU[uint64](c.m, uint32(what))
		if err != nil {
			return Counts{}, err
		}
		for _, v := range perCPU {
			*to += v
		}
	}
	return n, nil
}
