// SPDX-License-Identifier: Apache-2.0

// Package networkpolicy is the typed view of the maps of NetworkPolicy: those that programs ask about a new connection, and those
// that an ADD asks about a pod. Only the loader writes them. Views do not own their maps.
package networkpolicy

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// Policy is a set of segments as programs read it.
type Policy bpfgen.TypesSlNpPolicy

// NewPolicy returns a set of a generation.
func NewPolicy(generation uint32, id networkpolicy.SetID, segments []networkpolicy.Segment) (*Policy, error) {
	p := &Policy{Set: uint64(id), Generation: generation}
	if len(segments) > len(p.Segments) {
		return nil, fmt.Errorf("set %#x has %d segments, %d fit", id, len(segments), len(p.Segments))
	}
	n := 0
	for _, dir := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
		first := n
		for _, s := range segments {
			if s.Direction == dir {
				p.Segments[n] = segment(s)
				n++
			}
		}
		if n == first+1 && p.Segments[first].Point == uint16(networkpolicy.AcceptPoint) { // says no more than nothing
			p.Segments[first], n = bpfgen.TypesSlNpSegment{}, first
		}
		if dir == networkpolicy.Ingress {
			p.IngressCount = uint16(n)
		} else {
			p.EgressCount = uint16(n - first)
		}
	}
	return p, nil
}

func segment(s networkpolicy.Segment) bpfgen.TypesSlNpSegment {
	out := bpfgen.TypesSlNpSegment{Point: uint16(s.Point), PortMin: s.First, PortMax: s.Last, Proto: uint8(s.Protocol)}
	if s.Protocol != networkpolicy.AnyProtocol {
		out.ProtoMask = 0xff
	}
	return out
}

// Closed is the policy of pods of which nothing is known.
func Closed() *Policy {
	all := networkpolicy.Segment{Last: 1<<16 - 1, Point: networkpolicy.DenyPoint}
	egress := all
	egress.Direction = networkpolicy.Egress
	p, _ := NewPolicy(0, networkpolicy.ClosedSet, []networkpolicy.Segment{all, egress}) // two segments fit
	return p
}

// Device is a pod's device under NetworkPolicy.
type Device bpfgen.TypesSlNpDevice

// Devices is the view of sl_np_devices, with keys as in sl_dev_policy. The view of no map is empty.
type Devices struct{ m *bpfsys.Map }

// NewDevices returns a view of m; nil is no map.
func NewDevices(m *bpfsys.Map) Devices { return Devices{m} }

// Put writes the entry of a device. E2BIG: the map is full.
func (d Devices) Put(key uint32, v *Device) error { return bpfsys.Put(d.m, key, *v) }

// Get returns the entry of a device; false when it is not under NetworkPolicy.
func (d Devices) Get(key uint32) (Device, bool, error) {
	if d.m == nil {
		return Device{}, false, nil
	}
	return bpfsys.Lookup[Device](d.m, key)
}

// Delete removes the entry of a device; missing is success.
func (d Devices) Delete(key uint32) error {
	if d.m == nil {
		return nil
	}
	return bpfsys.Remove(d.m, key)
}

// All returns every device.
func (d Devices) All() (map[uint32]Device, error) {
	all := map[uint32]Device{}
	if d.m == nil {
		return all, nil
	}
	err := codec.Each(d.m, func(k *uint32, v *Device) bool {
		all[*k] = *v
		return true
	})
	return all, err
}

// Pod is what is known of a pod of this node.
type Pod struct {
	Set        networkpolicy.SetID
	Generation uint32
}

// Tables are what the agent writes.
type Tables struct {
	Peers, CIDRs, Services, Bits *bpfsys.Map // for programs
	Sets, Pods, Namespaces       *bpfsys.Map // for an ADD
}

type (
	addrKey  bpfgen.TypesSlNpAddr
	peer     bpfgen.TypesSlNpPeer
	cidrKey  bpfgen.TypesSlNpCidr
	chunkKey bpfgen.TypesSlNpChunk
	bits     bpfgen.TypesSlNpBits
	podValue bpfgen.TypesSlNpPod
	setKey   bpfgen.TypesSlNpSet
)

func newAddrKey(generation uint32, a netip.Addr) addrKey {
	return addrKey{Ip: codec.Addr(a), Generation: generation}
}

// PutPeer writes the class of an address. E2BIG: the map is full.
func (t Tables) PutPeer(generation uint32, a netip.Addr, class networkpolicy.Class, owner networkpolicy.Owner) error {
	return bpfsys.Put(t.Peers, newAddrKey(generation, a), peer{Class: uint32(class), Owner: uint32(owner)})
}

// DeletePeer removes an address if owner has it; missing is success.
func (t Tables) DeletePeer(generation uint32, a netip.Addr, owner networkpolicy.Owner) error {
	key := newAddrKey(generation, a)
	v, ok, err := bpfsys.Lookup[peer](t.Peers, key)
	if err != nil || !ok || v.Owner != uint32(owner) {
		return err
	}
	return bpfsys.Remove(t.Peers, key)
}

func newCIDRKey(generation uint32, p netip.Prefix) cidrKey {
	p = netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), int(codec.PrefixLen(p))).Masked()
	return cidrKey{PrefixLen: 32 + uint32(p.Bits()), Generation: generation, Ip: p.Addr().As16()}
}

// PutCIDR writes the class of the addresses of a network that are in no longer one.
func (t Tables) PutCIDR(generation uint32, p netip.Prefix, class networkpolicy.Class) error {
	return bpfsys.Put(t.CIDRs, newCIDRKey(generation, p), uint32(class))
}

// DeleteCIDR removes a network; missing is success.
func (t Tables) DeleteCIDR(generation uint32, p netip.Prefix) error {
	return bpfsys.Remove(t.CIDRs, newCIDRKey(generation, p))
}

// PutService notes that the addresses of a network are those of Services.
func (t Tables) PutService(generation uint32, p netip.Prefix) error {
	return bpfsys.Put(t.Services, newCIDRKey(generation, p), uint32(1))
}

// DeleteService takes that back; missing is success.
func (t Tables) DeleteService(generation uint32, p netip.Prefix) error {
	return bpfsys.Remove(t.Services, newCIDRKey(generation, p))
}

// PutBits writes a part of a class's bits.
func (t Tables) PutBits(generation uint32, class networkpolicy.Class, index int, b networkpolicy.Chunk) error {
	return bpfsys.Put(t.Bits, chunkKey{Class: uint32(class), Generation: generation, Chunk: uint32(index)}, bits{Words: b})
}

// DeleteBits removes the parts of a class's bits, of which there are chunks; missing is success.
func (t Tables) DeleteBits(generation uint32, class networkpolicy.Class, chunks int) error {
	for i := range chunks {
		if err := bpfsys.Remove(t.Bits, chunkKey{Class: uint32(class), Generation: generation, Chunk: uint32(i)}); err != nil {
			return err
		}
	}
	return nil
}

// PutSet writes a set.
func (t Tables) PutSet(p *Policy) error {
	return bpfsys.Put(t.Sets, setKey{Set: p.Set, Generation: p.Generation}, *p)
}

// Set returns a set; false when there is none.
func (t Tables) Set(generation uint32, id networkpolicy.SetID) (*Policy, bool, error) {
	p, ok, err := bpfsys.Lookup[Policy](t.Sets, setKey{Set: uint64(id), Generation: generation})
	return &p, ok, err
}

// DeleteSet removes a set; missing is success.
func (t Tables) DeleteSet(generation uint32, id networkpolicy.SetID) error {
	return bpfsys.Remove(t.Sets, setKey{Set: uint64(id), Generation: generation})
}

// PutPod writes what is known of the pod with a key (networkpolicy.PodKey).
func (t Tables) PutPod(key uint64, p Pod) error {
	return bpfsys.Put(t.Pods, key, podValue{Set: uint64(p.Set), Generation: p.Generation})
}

// Pod returns what is known of a pod; false when that is nothing.
func (t Tables) Pod(key uint64) (Pod, bool, error) {
	v, ok, err := bpfsys.Lookup[podValue](t.Pods, key)
	return Pod{networkpolicy.SetID(v.Set), v.Generation}, ok, err
}

// DeletePod removes a pod; missing is success.
func (t Tables) DeletePod(key uint64) error { return bpfsys.Remove(t.Pods, key) }

// PutNamespace notes that no policy can select a pod of the namespace with a key (networkpolicy.NamespaceKey).
func (t Tables) PutNamespace(generation uint32, key uint64) error {
	return bpfsys.Put(t.Namespaces, key, generation)
}

// HasNamespace reports whether no policy can select a pod of the namespace.
func (t Tables) HasNamespace(key uint64) (bool, error) {
	_, ok, err := bpfsys.Lookup[uint32](t.Namespaces, key)
	return ok, err
}

// DeleteNamespace takes that back; missing is success.
func (t Tables) DeleteNamespace(key uint64) error { return bpfsys.Remove(t.Namespaces, key) }

// Forget removes what is of another generation from all tables.
func (t Tables) Forget(keep uint32) error {
	if err := forget(t.Peers, func(k *addrKey, _ *peer) bool { return k.Generation != keep }); err != nil {
		return err
	}
	for _, m := range []*bpfsys.Map{t.CIDRs, t.Services} {
		if err := forget(m, func(k *cidrKey, _ *uint32) bool { return k.Generation != keep }); err != nil {
			return err
		}
	}
	if err := forget(t.Bits, func(k *chunkKey, _ *bits) bool { return k.Generation != keep }); err != nil {
		return err
	}
	if err := forget(t.Sets, func(k *setKey, _ *Policy) bool { return k.Generation != keep }); err != nil {
		return err
	}
	if err := forget(t.Pods, func(_ *uint64, p *podValue) bool { return p.Generation != keep }); err != nil {
		return err
	}
	return forget(t.Namespaces, func(_ *uint64, generation *uint32) bool { return *generation != keep })
}

// forget removes the entries of a map that match.
func forget[K, V any](m *bpfsys.Map, match func(*K, *V) bool) error {
	var keys []K
	err := codec.Each(m, func(k *K, v *V) bool {
		if match(k, v) {
			keys = append(keys, *k)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := bpfsys.Remove(m, k); err != nil {
			return err
		}
	}
	return nil
}
