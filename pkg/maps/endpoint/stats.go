// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Counters are what happened on one pod device since it was enabled.
type Counters bpfgen.TypesSlEndpointStats

// Stats is the view of sl_ep_stats, counters by ifindex of the host veth.
type Stats struct{ m *bpfsys.Map }

// NewStats returns a view of m.
func NewStats(m *bpfsys.Map) Stats { return Stats{m} }

// Create makes a zero entry for ifindex, a device of pod (Value.Pod) and owner; one of theirs that is there is kept.
func (s Stats) Create(ifindex uint32, pod, owner uint64) error {
	old, err := bpfsys.LookupPerCPU[Counters](s.m, ifindex)
	if err != nil || old != nil && old[0].Pod == pod && old[0].Owner == owner {
		return err
	}
	return bpfsys.PutPerCPU(s.m, ifindex, Counters{Pod: pod, Owner: owner})
}

// Has reports whether ifindex has counters, that is whether it is the host veth of a pod.
func (s Stats) Has(ifindex uint32) (bool, error) {
	perCPU, err := bpfsys.LookupPerCPU[Counters](s.m, ifindex)
	return perCPU != nil, err
}

// Get returns the counters of ifindex summed over all CPUs; false when there are none.
func (s Stats) Get(ifindex uint32) (Counters, bool, error) {
	var sum Counters
	perCPU, err := bpfsys.LookupPerCPU[Counters](s.m, ifindex)
	if perCPU == nil {
		return sum, false, err
	}
	for i := range perCPU {
		c := &perCPU[i]
		sum.RxPackets += c.RxPackets
		sum.RxBytes += c.RxBytes
		sum.TxPackets += c.TxPackets
		sum.TxBytes += c.TxBytes
		sum.RxFast += c.RxFast
		sum.TxFast += c.TxFast
		sum.Drops += c.Drops
		sum.Pod, sum.Owner = c.Pod, c.Owner
	}
	return sum, true, nil
}

// Delete removes the counters of ifindex; missing is success.
func (s Stats) Delete(ifindex uint32) error { return bpfsys.Remove(s.m, ifindex) }

// Keys returns the ifindexes that have counters.
func (s Stats) Keys() ([]uint32, error) { return bpfsys.Keys[uint32](s.m) }
