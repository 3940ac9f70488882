// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "net/netip"

// Class is a number for all peers about whom every program of the node's sets says the same.
type Class uint32

// OtherClass is the class of addresses that are no pod's and in no block that a rule names.
const OtherClass Class = 0

// Point is the number of a bit that each class has. Two are fixed: DenyPoint is set in no class, and AcceptPoint in each.
type Point uint16

// The points that ask nothing about the peer.
const (
	DenyPoint   Point = 0
	AcceptPoint Point = 1
	firstPoint        = 2
)

// SetID is what names a set: the first eight bytes of the SHA-256 of its meaning.
type SetID uint64

// OpenSet is what pods have that nothing restricts; it is never written. ClosedSet admits nothing: its pods have a policy that does
// not fit, or a namespace that is unknown.
const (
	OpenSet   SetID = 0
	ClosedSet SetID = 1
	firstSet        = 2
)

// Segment says which point answers for packets of a direction. The first segment of a set that fits a packet does; the last ones of
// both directions fit every packet.
type Segment struct {
	Direction   Direction
	Protocol    Protocol // AnyProtocol fits packets without ports too
	First, Last uint16   // ports of the end that the connection is opened to; both included
	Point       Point
}

// ChunkBits is how many bits of a class one write has.
const ChunkBits = 512

// Chunk is the bits of the points from a multiple of ChunkBits on; the first point's bit is the lowest of the first word.
type Chunk [ChunkBits / 64]uint64

// Owner tells pods apart in the peers' table: the first four bytes of a pod's key, big-endian. A node's address has owner 0.
type Owner uint32

// Change is one write to one of the kernel's tables. A list of them has to be applied in its order.
type Change interface{ change() }

// The changes. Addr and Prefix are in 16-byte form, IPv4 as ::ffff:a.b.c.d.
type (
	// WritePeer is about the table of addresses that are known.
	WritePeer struct {
		Addr  netip.Addr
		Class Class
		Owner Owner
		Loses bool // a set may admit less than before: connections with the address that were admitted have to be asked again
	}
	// DeletePeer removes an address if Owner still has it.
	DeletePeer struct {
		Addr  netip.Addr
		Owner Owner
		Loses bool // as that of WritePeer
	}
	// WriteCIDR is about addresses that are not in the table of peers. The longest prefix answers. Its answer is complete: no
	// shorter prefix has to be asked. Prefixes come and go with the sets that ask for them, so no other set admits less by it.
	WriteCIDR struct {
		Prefix netip.Prefix
		Class  Class
	}
	// DeleteCIDR removes a prefix.
	DeleteCIDR struct{ Prefix netip.Prefix }
	// WriteBits is about points [Index*ChunkBits, (Index+1)*ChunkBits) of a class.
	WriteBits struct {
		Class Class
		Index int
		Bits  Chunk
	}
	// DeleteBits removes the chunks of a class, of which there are Chunks.
	DeleteBits struct {
		Class  Class
		Chunks int
	}
	// WriteSet has all segments of a set.
	WriteSet struct {
		ID       SetID
		Segments []Segment
	}
	// DeleteSet removes a set that no pod has any more.
	DeleteSet struct{ ID SetID }
	// WritePod says which set a pod of this node has.
	WritePod struct {
		UID string
		Set SetID
	}
	// DeletePod removes a pod of this node.
	DeletePod struct{ UID string }
	// WriteService says that the addresses of a network are those of Services. What a pod sends there is asked about when it has
	// the destination that it gets on its way.
	WriteService struct{ Prefix netip.Prefix }
	// DeleteService takes that back.
	DeleteService struct{ Prefix netip.Prefix }
	// WriteNamespace says that no policy can select a pod of a namespace, so that one which is not in the table of pods yet starts
	// without restrictions.
	WriteNamespace struct{ Name string }
	// DeleteNamespace takes that back.
	DeleteNamespace struct{ Name string }
)

func (WritePeer) change()  {}
func (DeletePeer) change() {}
func (WriteCIDR) change()  {}
func (DeleteCIDR) change() {}
func (WriteBits) change()  {}
func (DeleteBits) change() {}
func (WriteSet) change()   {}
func (DeleteSet) change()  {}
func (WritePod) change()   {}
func (DeletePod) change()  {}

func (WriteService) change()    {}
func (DeleteService) change()   {}
func (WriteNamespace) change()  {}
func (DeleteNamespace) change() {}
