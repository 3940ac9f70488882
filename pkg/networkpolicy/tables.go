// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"slices"
)

// Verdict is the answer of the tables about one end of a connection.
type Verdict uint8

// The verdicts. Anything but Admitted is a drop.
const (
	Denied   Verdict = iota // no bit
	Admitted                // by a bit, or because nothing restricts the pod
	Pending                 // the pod is not in the table, or its set is ClosedSet
)

func (v Verdict) String() string {
	return [...]string{"denied", "admitted", "pending"}[v]
}

// Tables are the kernel's tables in memory. They apply the changes of an Engine and answer as the datapath does, so that a test or a
// command can ask without a kernel. The zero value is not ready: see NewTables.
type Tables struct {
	peers map[netip.Addr]peerValue
	cidrs map[netip.Prefix]Class
	bits  map[bitsKey]Chunk
	sets  map[SetID][]Segment
	pods  map[string]SetID
	open  map[string]struct{}
}

type peerValue struct {
	class Class
	owner Owner
}

type bitsKey struct {
	class Class
	index int
}

// NewTables returns empty tables.
func NewTables() *Tables {
	return &Tables{
		peers: map[netip.Addr]peerValue{}, cidrs: map[netip.Prefix]Class{}, bits: map[bitsKey]Chunk{},
		sets: map[SetID][]Segment{}, pods: map[string]SetID{}, open: map[string]struct{}{},
	}
}

// Apply makes one change.
func (t *Tables) Apply(c Change) {
	switch c := c.(type) {
	case WritePeer:
		t.peers[c.Addr] = peerValue{c.Class, c.Owner}
	case DeletePeer:
		if t.peers[c.Addr].owner == c.Owner {
			delete(t.peers, c.Addr)
		}
	case WriteCIDR:
		t.cidrs[c.Prefix] = c.Class
	case DeleteCIDR:
		delete(t.cidrs, c.Prefix)
	case WriteBits:
		t.bits[bitsKey{c.Class, c.Index}] = c.Bits
	case DeleteBits:
		for i := range c.Chunks {
			delete(t.bits, bitsKey{c.Class, i})
		}
	case WriteSet:
		t.sets[c.ID] = slices.Clone(c.Segments)
	case DeleteSet:
		delete(t.sets, c.ID)
	case WritePod:
		t.pods[c.UID] = c.Set
	case DeletePod:
		delete(t.pods, c.UID)
	case WriteNamespace:
		t.open[c.Name] = struct{}{}
	case DeleteNamespace:
		delete(t.open, c.Name)
	}
}

// Lookup is the verdict of a pod of this node about a connection with peer, to port of the end that it is opened to. A protocol
// without ports has port 0.
func (t *Tables) Lookup(uid string, dir Direction, peer netip.Addr, proto Protocol, port uint16) Verdict {
	id, known := t.pods[uid]
	if !known {
		return Pending
	}
	if id == OpenSet {
		return Admitted
	}
	class, owner := t.classOf(netip.AddrFrom16(peer.As16()))
	if owner != 0 && owner == ownerOf(uid) {
		return Admitted // the datapath knows it by the device
	}
	if id == ClosedSet {
		return Pending
	}
	for _, s := range t.sets[id] {
		if s.Direction == dir && (s.Protocol == AnyProtocol || s.Protocol == proto && s.First <= port && port <= s.Last) {
			if t.bit(class, s.Point) {
				return Admitted
			}
			return Denied
		}
	}
	return Denied
}

// Open reports whether a pod of a namespace starts without restrictions while it is not in the table of pods. A pod of any other
// namespace waits.
func (t *Tables) Open(namespace string) bool {
	_, open := t.open[namespace]
	return open
}

func (t *Tables) classOf(peer netip.Addr) (Class, Owner) {
	if v, ok := t.peers[peer]; ok {
		return v.class, v.owner
	}
	for bits := 128; bits >= 0; bits-- {
		if class, ok := t.cidrs[netip.PrefixFrom(peer, bits).Masked()]; ok {
			return class, 0
		}
	}
	return OtherClass, 0
}

func (t *Tables) bit(class Class, p Point) bool {
	chunk := t.bits[bitsKey{class, int(p) / ChunkBits}]
	i := int(p) % ChunkBits
	return chunk[i/64]>>(i%64)&1 == 1
}

// Size is how many elements the tables have.
type Size struct{ Peers, CIDRs, Bits, Sets, Pods, Namespaces int }

// Size counts the elements.
func (t *Tables) Size() Size {
	return Size{Peers: len(t.peers), CIDRs: len(t.cidrs), Bits: len(t.bits), Sets: len(t.sets), Pods: len(t.pods), Namespaces: len(t.open)}
}
