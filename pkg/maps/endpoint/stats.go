// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"slices"

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
		sum.add(&perCPU[i])
		sum.Pod, sum.Owner = perCPU[i].Pod, perCPU[i].Owner
	}
	return sum, true, nil
}

// gone is the key of the sums of devices that have gone. No device has it as its index.
const gone = uint32(0)

func (c *Counters) add(o *Counters) {
	c.RxPackets += o.RxPackets
	c.RxBytes += o.RxBytes
	c.TxPackets += o.TxPackets
	c.TxBytes += o.TxBytes
	c.RxFast += o.RxFast
	c.TxFast += o.TxFast
	c.Drops += o.Drops
}

// Retire removes the counters of ifindex, and adds them to those of the devices that have gone; missing is success. The writers' lock is
// held. A kill in between loses them: a sum that a reader watches must not count twice.
func (s Stats) Retire(ifindex uint32) error {
	last, err := bpfsys.LookupPerCPU[Counters](s.m, ifindex)
	if err != nil || last == nil {
		return err
	}
	sums, err := bpfsys.LookupPerCPU[Counters](s.m, gone)
	if err != nil {
		return err
	}
	if sums == nil {
		sums = make([]Counters, len(last))
	}
	for i := range sums {
		sums[i].add(&last[i])
	}
	if err := s.Delete(ifindex); err != nil {
		return err
	}
	return bpfsys.PutEachCPU(s.m, gone, sums)
}

// Delete removes the counters of ifindex, for a device that never was a pod's; missing is success.
func (s Stats) Delete(ifindex uint32) error { return bpfsys.Remove(s.m, ifindex) }

// Keys returns the ifindexes that have counters.
func (s Stats) Keys() ([]uint32, error) {
	all, err := bpfsys.Keys[uint32](s.m)
	return slices.DeleteFunc(all, func(k uint32) bool { return k == gone }), err
}

// All returns the counters of each device, by its ifindex, and the sum of all since the map was made, with those of devices that have gone.
func (s Stats) All() (of map[uint32]Counters, total Counters, err error) {
	keys, err := bpfsys.Keys[uint32](s.m)
	of = make(map[uint32]Counters, len(keys))
	for _, k := range keys {
		c, ok, e := s.Get(k)
		if e != nil {
			return nil, total, e
		}
		if total.add(&c); ok && k != gone {
			of[k] = c
		}
	}
	return of, total, err
}
