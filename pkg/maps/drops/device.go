// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Place is where packets are dropped, whose, and why.
type Place struct {
	Device   uint32 // ifindex of the device the program is on; Endpoint where that is inside a pod
	Endpoint uint32 // key of the pod's device in sl_ep_stats, or of its limit with LimitKey; 0: none
	Reason   Reason
}

// LimitKey is set in the key of a limit: the number of its entry in sl_edt_limits, with this bit.
const LimitKey = 1 << 30

// DeviceDrops is the view of sl_drops_by_dev, and of sl_event_state, where each CPU has counted the drops that came after one another and
// are alike. sl_drops_by_dev is an LRU map: what has not been counted for long may be gone.
type DeviceDrops struct{ m, cpu *bpfsys.Map }

// NewDeviceDrops returns a view of the two maps.
func NewDeviceDrops(m, cpu *bpfsys.Map) DeviceDrops { return DeviceDrops{m, cpu} }

// runs is what the CPUs have counted and not brought to the map yet.
type runs []bpfgen.TypesSlEventState

// moved says whether a CPU has brought something to the map since earlier.
func (r runs) moved(earlier runs) bool {
	for i, e := range earlier {
		if e.Run != 0 && (r[i].Key != e.Key || r[i].Run < e.Run) {
			return true
		}
	}
	return false
}

// attempts bounds how often All reads anew because a CPU moved drops during the read: where they keep moving, they are few.
const attempts = 4

// All returns the packets dropped at each place, summed over all CPUs.
func (d DeviceDrops) All() (map[Place]uint64, error) {
	before, err := bpfsys.LookupPerCPU[bpfgen.TypesSlEventState](d.cpu, uint32(0))
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		all, err := d.counted()
		if err != nil {
			return nil, err
		}
		after, err := bpfsys.LookupPerCPU[bpfgen.TypesSlEventState](d.cpu, uint32(0))
		if err != nil {
			return nil, err
		}
		if runs(after).moved(before) && try < attempts {
			before = after
			continue
		}
		for _, r := range after {
			if r.Run != 0 {
				all[place(r.Key)] += r.Run
			}
		}
		return all, nil
	}
}

func place(k bpfgen.TypesSlDropKey) Place {
	return Place{Device: k.Device, Endpoint: k.Endpoint, Reason: Reason(k.Reason)}
}

// Len returns how many entries sl_drops_by_dev has.
func (d DeviceDrops) Len() (int, error) {
	all, err := d.counted()
	return len(all), err
}

// counted returns what is in sl_drops_by_dev.
func (d DeviceDrops) counted() (map[Place]uint64, error) {
	all := make(map[Place]uint64)
	var prev *bpfgen.TypesSlDropKey
	for range 2 * d.m.MaxEntries() { // an entry that goes during the walk starts the walk anew
		key, ok, err := bpfsys.NextKey(d.m, prev)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		prev = &key
		perCPU, err := bpfsys.LookupPerCPU[uint64](d.m, key)
		if err != nil {
			return nil, err
		}
		if perCPU == nil {
			continue
		}
		p := place(key)
		all[p] = 0
		for _, n := range perCPU {
			all[p] += n
		}
	}
	return all, nil
}
