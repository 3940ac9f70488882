// SPDX-License-Identifier: Apache-2.0

// Package metrics is the typed view of the drop counters. Programs count, each on its own CPU; nobody resets.
package metrics

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
)

// Reason says why a packet was dropped.
type Reason uint32

// Max is the number of reasons, including none (0).
const Max = Reason(bpfobj.TypesSlDropReasonSL_DROP_MAX)

// String returns the reason as the operator reads it.
func (r Reason) String() string {
	switch bpfobj.TypesSlDropReason(r) {
	case bpfobj.TypesSlDropReasonSL_DROP_NONE:
		return "none"
	case bpfobj.TypesSlDropReasonSL_DROP_SPOOFED_IP:
		return "source address is not the pod's"
	case bpfobj.TypesSlDropReasonSL_DROP_SPOOFED_MAC:
		return "source MAC is not the pod's"
	case bpfobj.TypesSlDropReasonSL_DROP_NO_SNAT_ADDR:
		return "uplink has no address to masquerade with"
	case bpfobj.TypesSlDropReasonSL_DROP_SNAT_PORTS:
		return "no free source port toward the destination"
	case bpfobj.TypesSlDropReasonSL_DROP_TUPLE_CLASH:
		return "same client port through two hostPorts to one pod port"
	case bpfobj.TypesSlDropReasonSL_DROP_FLOW_TABLE:
		return "flow could not be recorded"
	case bpfobj.TypesSlDropReasonSL_DROP_REWRITE:
		return "packet could not be rewritten"
	}
	return fmt.Sprintf("reason %d", uint32(r))
}

// Drops is the view of sl_drops.
type Drops struct{ m *ebpf.Map }

// NewDrops returns a view of m.
func NewDrops(m *ebpf.Map) Drops { return Drops{m} }

// Get returns the packets dropped for r since the maps were made, summed over all CPUs.
func (d Drops) Get(r Reason) (uint64, error) {
	var perCPU []uint64
	if err := d.m.Lookup(uint32(r), &perCPU); err != nil {
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
