// SPDX-License-Identifier: Apache-2.0

// Package podns is the typed view of sl_ns_devices: the pod devices, in their pod netns, that have programs. A
// device is known by a number of the node, since an ifindex says nothing outside of its namespace. Only the loader writes it;
// a view does not own its map.
package podns

import (
	"errors"
	"math/rand/v2"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Numbers are 16 bits wide, as the class of a filter; those from Last+1 on mean something to clsact, 0 is none.
const (
	First = 1
	Last  = 0xffef
)

// keyBit tells a number from an ifindex of the node where both are keys.
const keyBit = uint32(1 << 31)

// ErrNoNumber says that every number is taken.
var ErrNoNumber = errors.New("no free device number")

// Device is a pod device.
type Device bpfgen.TypesSlPodnsDevice

// Key returns the key of device number in maps whose other keys are ifindexes (endpoint.Stats).
func Key(number uint32) uint32 { return keyBit | number }

// IsKey reports whether k was made by Key, and is not an ifindex.
func IsKey(k uint32) bool { return k&keyBit != 0 }

// Map is the view of sl_ns_devices, by number.
type Map struct{ m *bpfsys.Map }

// New returns a view of m.
func New(m *bpfsys.Map) Map { return Map{m} }

// Put writes the entry of a number. E2BIG: the map is full.
func (m Map) Put(number uint32, v *Device) error { return bpfsys.Put(m.m, number, *v) }

// Get returns the entry of a number; false when there is none.
func (m Map) Get(number uint32) (Device, bool, error) {
	return bpfsys.Lookup[Device](m.m, number)
}

// Delete removes the entry of a number; missing is success.
func (m Map) Delete(number uint32) error { return bpfsys.Remove(m.m, number) }

// All returns every device.
func (m Map) All() (map[uint32]Device, error) {
	all := make(map[uint32]Device)
	err := codec.Each(m.m, func(k *uint32, v *Device) bool {
		all[*k] = *v
		return true
	})
	return all, err
}

// Free returns a number that taken does not hold, from a random place on: one that was given back is not used again soon, since
// the filters of a namespace that could not be entered may still carry it.
func Free(taken func(number uint32) bool) (uint32, error) {
	const count = Last - First + 1
	start := rand.Uint32N(count)
	for i := range uint32(count) {
		if n := First + (start+i)%count; !taken(n) {
			return n, nil
		}
	}
	return 0, ErrNoNumber
}
