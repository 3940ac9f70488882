// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Devices is the view of sl_pod_devices, the host veths of pods by ifindex. The kernel deletes the entry of a device that goes. The view
// of no map is empty and takes nothing.
type Devices struct{ m *bpfsys.Map }

// NewDevices returns a view of m; nil is no map.
func NewDevices(m *bpfsys.Map) Devices { return Devices{m} }

// Track has the kernel keep an entry for a device of the calling thread's network namespace while it exists. known: the map knows
// whether the device exists, also when it does not. E2BIG: the map is full.
func (d Devices) Track(ifindex uint32) (known bool, err error) {
	if d.m == nil {
		return false, nil
	}
	err = bpfsys.Put(d.m, ifindex, ifindex)
	if errors.Is(err, unix.EINVAL) { // no such device (__dev_map_alloc_node)
		return true, nil
	}
	return err == nil, err
}

// Has reports whether a device that was tracked exists.
func (d Devices) Has(ifindex uint32) (bool, error) {
	if d.m == nil {
		return false, nil
	}
	_, ok, err := bpfsys.Lookup[uint32](d.m, ifindex)
	return ok, err
}

// Delete ends the tracking of a device; missing is success.
func (d Devices) Delete(ifindex uint32) error {
	if d.m == nil {
		return nil
	}
	return bpfsys.Remove(d.m, ifindex)
}

// Keys returns the devices that are tracked.
func (d Devices) Keys() ([]uint32, error) {
	if d.m == nil {
		return nil, nil
	}
	return bpfsys.Keys[uint32](d.m)
}
