// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// PodMAC is the one source MAC that a pod with macspoofchk may use.
type PodMAC bpfgen.TypesSlPodMac

// NewPodMAC returns the value of a device of owner.
func NewPodMAC(owner uint64, mac net.HardwareAddr) *PodMAC {
	v := &PodMAC{Owner: owner}
	copy(v.Mac[:], mac)
	return v
}

// PodMACs is the view of sl_pod_macs, by ifindex of the host veth.
type PodMACs struct{ m *bpfsys.Map }

// NewPodMACs returns a view of m.
func NewPodMACs(m *bpfsys.Map) PodMACs { return PodMACs{m} }

// Put writes the entry of ifindex. E2BIG: the map is full.
func (m PodMACs) Put(ifindex uint32, v *PodMAC) error { return bpfsys.Put(m.m, ifindex, *v) }

// Get returns the entry of ifindex; false when there is none.
func (m PodMACs) Get(ifindex uint32) (PodMAC, bool, error) {
	return bpfsys.Lookup[PodMAC](m.m, ifindex)
}

// Delete removes the entry of ifindex; missing is success.
func (m PodMACs) Delete(ifindex uint32) error { return bpfsys.Remove(m.m, ifindex) }

// All returns every entry.
func (m PodMACs) All() (map[uint32]PodMAC, error) {
	all := make(map[uint32]PodMAC)
	err := codec.Each(m.m, func(k *uint32, v *PodMAC) bool {
		all[*k] = *v
		return true
	})
	return all, err
}
