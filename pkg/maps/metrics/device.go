// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
)

// Place is where packets are dropped, whose, and why.
type Place struct {
	Device   uint32 // ifindex of the device the program is on; Endpoint where that is inside a pod
	Endpoint uint32 // key of the pod's device in sl_ep_stats, or of its limit with LimitKey; 0: none
	Reason   Reason
}

// LimitKey is set in the key of a limit: the number of its entry in sl_edt_limits, with this bit.
const LimitKey = 1 << 30

// DeviceDrops is the view of sl_dev_drops. It is an LRU map: what has not been counted for long may be gone.
type DeviceDrops struct{ m *ebpf.Map }

// NewDeviceDrops returns a view of m.
func NewDeviceDrops(m *ebpf.Map) DeviceDrops { return DeviceDrops{m} }

// All returns the packets dropped at each place, summed over all CPUs.
func (d DeviceDrops) All() (map[Place]uint64, error) {
	all := make(map[Place]uint64)
	var prev any
	for range 2 * d.m.MaxEntries() { // an entry that goes meanwhile starts the walk anew
		var key bpfobj.TypesSlDropKey
		if err := d.m.NextKey(prev, &key); err != nil {
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return all, nil
			}
			return nil, err
		}
		prev = key
		var perCPU []uint64
		switch err := d.m.Lookup(key, &perCPU); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			continue
		case err != nil:
			return nil, err
		}
		p := Place{Device: key.Device, Endpoint: key.Endpoint, Reason: Reason(key.Reason)}
		all[p] = 0
		for _, n := range perCPU {
			all[p] += n
		}
	}
	return all, nil
}
