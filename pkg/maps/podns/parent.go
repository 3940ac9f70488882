// SPDX-License-Identifier: Apache-2.0

package podns

import (
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// ParentKey says what packets of a pod look like at the parent device.
type ParentKey bpfgen.TypesSlParentKey

// Flags of a ParentPod that all of a namespace's packets lead to: its devices are told apart by MAC, or by address.
const (
	ParentByMAC  = uint32(bpfgen.TypesSlParentFlagSL_PARENT_BY_MAC)
	ParentByAddr = uint32(bpfgen.TypesSlParentFlagSL_PARENT_BY_ADDR)
)

// WithMAC returns the key of packets with that source MAC among those of k.
func (k ParentKey) WithMAC(mac net.HardwareAddr) ParentKey {
	k.Kind = uint16(bpfgen.TypesSlParentKindSL_PARENT_MAC)
	copy(k.Id[:], mac)
	return k
}

// WithAddr returns the key of packets with that source address among those of k.
func (k ParentKey) WithAddr(a netip.Addr) ParentKey {
	k.Kind, k.Id = uint16(bpfgen.TypesSlParentKindSL_PARENT_ADDR), codec.Addr(a)
	return k
}

// IsMAC reports whether k was made by WithMAC.
func (k ParentKey) IsMAC() bool { return k.Kind == uint16(bpfgen.TypesSlParentKindSL_PARENT_MAC) }

// AnyOf returns the key of all packets of one namespace, or with one VLAN tag, that k is one of.
func (k ParentKey) AnyOf() ParentKey {
	k.Kind, k.Id = uint16(bpfgen.TypesSlParentKindSL_PARENT_ANY), [16]uint8{}
	return k
}

// ParentPod is a pod as the program on the parent device knows it.
type ParentPod bpfgen.TypesSlParentPod

// Used reports whether the program does something for the pod.
func (v ParentPod) Used() bool { return v.Device != 0 || v.Limit != 0 }

// Parents is the view of sl_parent_pods.
type Parents struct{ m *bpfsys.Map }

// NewParents returns a view of m.
func NewParents(m *bpfsys.Map) Parents { return Parents{m} }

// Put writes the entry of k. E2BIG: the map is full.
func (m Parents) Put(k ParentKey, v ParentPod) error { return bpfsys.Put(m.m, k, v) }

// Delete removes the entry of k; missing is success.
func (m Parents) Delete(k ParentKey) error { return bpfsys.Remove(m.m, k) }

// All returns every entry.
func (m Parents) All() (map[ParentKey]ParentPod, error) {
	all := make(map[ParentKey]ParentPod)
	err := codec.Each(m.m, func(k *ParentKey, v *ParentPod) bool {
		all[*k] = *v
		return true
	})
	return all, err
}
