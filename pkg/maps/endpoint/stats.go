// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
)

// Counters are what happened on one pod device since it was enabled.
type Counters bpfobj.TypesSlEndpointStats

// Stats is the view of sl_ep_stats, counters by ifindex of the host end.
type Stats struct{ m *ebpf.Map }

// NewStats returns a view of m.
func NewStats(m *ebpf.Map) Stats { return Stats{m} }

// Create makes a zero entry for ifindex, a device of pod (Value.Pod) and owner; one of theirs that is there is kept.
func (s Stats) Create(ifindex uint32, pod, owner uint64) error {
	var old []Counters
	err := s.m.Lookup(ifindex, &old)
	switch {
	case err == nil && old[0].Pod == pod && old[0].Owner == owner:
		return nil
	case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	perCPU := make([]Counters, cpus)
	for i := range perCPU {
		perCPU[i].Pod, perCPU[i].Owner = pod, owner
	}
	return s.m.Update(ifindex, perCPU, ebpf.UpdateAny)
}

// Has reports whether ifindex has counters, that is whether it is the host end of a pod's device.
func (s Stats) Has(ifindex uint32) (bool, error) {
	b, err := s.m.LookupBytes(ifindex)
	return b != nil, err
}

// Get returns the counters of ifindex summed over all CPUs; false when there are none.
func (s Stats) Get(ifindex uint32) (Counters, bool, error) {
	var (
		sum    Counters
		perCPU []Counters
	)
	err := s.m.Lookup(ifindex, &perCPU)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return sum, false, nil
	}
	if err != nil {
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
func (s Stats) Delete(ifindex uint32) error { return ignoreMissing(s.m.Delete(ifindex)) }

// Keys returns the ifindexes that have counters.
func (s Stats) Keys() ([]uint32, error) {
	var (
		keys []uint32
		prev any
		next uint32
	)
	for range s.m.MaxEntries() {
		err := s.m.NextKey(prev, &next)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, next)
		prev = next
	}
	return keys, nil
}
