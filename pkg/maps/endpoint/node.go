// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// HostAddrs is the view of sl_node_addrs: the addresses that stand for the node, each with the ifindex that has it.
type HostAddrs struct{ m *bpfsys.Map }

// NewHostAddrs returns a view of m.
func NewHostAddrs(m *bpfsys.Map) HostAddrs { return HostAddrs{m} }

// All returns the whole set.
func (h HostAddrs) All() (map[netip.Addr]uint32, error) {
	set := make(map[netip.Addr]uint32)
	err := codec.Each(h.m, func(k *[16]byte, v *uint32) bool {
		set[codec.FromAddr(*k)] = *v
		return true
	})
	return set, err
}

// Put adds an address or moves it to another device.
func (h HostAddrs) Put(a netip.Addr, ifindex uint32) error {
	return bpfsys.Put(h.m, codec.Addr(a), ifindex)
}

// Delete removes an address; missing is success.
func (h HostAddrs) Delete(a netip.Addr) error { return bpfsys.Remove(h.m, codec.Addr(a)) }

// Sources are the addresses an uplink masquerades with; the zero Addr means that it has none in that family.
type Sources struct {
	V4, V6 netip.Addr
	Bare   bool // the device has no Ethernet header
	// NoRedirect: a redirect to a device without Ethernet header does not take the pod's header off, so it stays on the slow path.
	NoRedirect bool
	// AgainMax is the longest frame that a bridge, or a device on one, gets once more after it was translated (bpf/lib/fastpath/again.h).
	// 0: there is no bridge below.
	AgainMax uint16
}

// Uplinks is the view of sl_uplinks, by ifindex.
type Uplinks struct{ m *bpfsys.Map }

// NewUplinks returns a view of m.
func NewUplinks(m *bpfsys.Map) Uplinks { return Uplinks{m} }

// All returns every uplink.
func (u Uplinks) All() (map[uint32]Sources, error) {
	set := make(map[uint32]Sources)
	err := codec.Each(u.m, func(k *uint32, v *bpfgen.TypesSlUplink) bool {
		set[*k] = Sources{V4: orNone(v.Src4), V6: orNone(v.Src6), Bare: v.Bare != 0, NoRedirect: v.Bare == uint16(bpfgen.TypesSlBareSL_BARE_NO_FAST), AgainMax: v.AgainMax}
		return true
	})
	return set, err
}

// orNone reads an address whose all-zero form means that there is none.
func orNone(b [16]byte) netip.Addr {
	if b == [16]byte{} {
		return netip.Addr{}
	}
	return codec.FromAddr(b)
}

// Put writes an uplink.
func (u Uplinks) Put(ifindex uint32, s Sources) error {
	v := bpfgen.TypesSlUplink{Src4: codec.Addr(s.V4), Src6: codec.Addr(s.V6), AgainMax: s.AgainMax}
	switch {
	case s.NoRedirect:
		v.Bare = uint16(bpfgen.TypesSlBareSL_BARE_NO_FAST)
	case s.Bare:
		v.Bare = uint16(bpfgen.TypesSlBareSL_BARE_FAST)
	}
	return bpfsys.Put(u.m, ifindex, v)
}

// Delete removes an uplink; missing is success.
func (u Uplinks) Delete(ifindex uint32) error { return bpfsys.Remove(u.m, ifindex) }

// NoMasq is the view of sl_nomasq_cidrs, the destinations that are never masqueraded.
type NoMasq struct{ m *bpfsys.Map }

// NewNoMasq returns a view of m.
func NewNoMasq(m *bpfsys.Map) NoMasq { return NoMasq{m} }

// Len returns the number of networks.
func (n NoMasq) Len() (int, error) { return codec.Count[bpfgen.TypesSlCidr, uint32](n.m) }

// Replace makes want the whole set: what is new is added before what is old goes, so that no wanted network is ever missing.
func (n NoMasq) Replace(want []netip.Prefix) error {
	keys := make(map[bpfgen.TypesSlCidr]bool, len(want))
	for _, p := range want {
		p = p.Masked()
		keys[bpfgen.TypesSlCidr{PrefixLen: uint32(codec.PrefixLen(p)), Ip: codec.Addr(p.Addr())}] = true
	}
	return putSet(n.m, keys, true)
}

// putSet puts in the keys of a set that are missing, and then takes out all others if want is the whole set. What is right is only read.
func putSet[K comparable](m *bpfsys.Map, want map[K]bool, whole bool) error {
	have := make(map[K]bool)
	if err := codec.Each(m, func(k *K, _ *uint32) bool {
		have[*k] = true
		return true
	}); err != nil {
		return err
	}
	for k := range want {
		if !have[k] {
			if err := bpfsys.Put(m, k, uint32(1)); err != nil {
				return err
			}
		}
	}
	for k := range have {
		if whole && !want[k] {
			if err := bpfsys.Remove(m, k); err != nil {
				return err
			}
		}
	}
	return nil
}
