// SPDX-License-Identifier: Apache-2.0

// Package blocks is the node's own file of one pool, and the files of its attachments beside it: the addresses that the
// node has claimed, and which attachment has which of them. ADD and DEL change them under a lock, and need nothing else.
//
// The plugin and the claims use it. An address is usable only while it stands under Claims here. The order of writes is
// in docs/dev/adr/0040-cluster-addresses.md. It must not talk to a store.
package blocks

import (
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// State is the content of the files.
type State struct {
	Version int          `json:"version"`
	Pool    string       `json:"pool"`
	Place   string       `json:"place,omitempty"` // which store; a file of another store is not used
	CIDR    netip.Prefix `json:"cidr"`
	Network string       `json:"network,omitempty"`
	Node    string       `json:"node"`
	Machine string       `json:"machine"`
	Boot    string       `json:"boot"`

	Lifecycle

	// FreeList are the offsets that are claimed, not in use and not kept for an owner, ascending. Save fills it in for what
	// does not read the uses of all attachments.
	FreeList []uint64 `json:"free,omitempty"`
	// Used is who has which offset. It stands in the files of the attachments. After OpenFor it has the uses of one attachment.
	Used map[uint64]Use `json:"-"`
	Owed []Owed         `json:"owed,omitempty"` // releases that wait for the store
	Gone []string       `json:"gone,omitempty"` // attachments released last, by a hash
	Last uint64         `json:"last"`

	Claimed int64 `json:"claimed,omitempty"` // when a block was claimed last, in seconds since 1970
	Touched int64 `json:"touched,omitempty"` // when an ADD or DEL changed the file last, in milliseconds since 1970

	Scarce bool  `json:"scarce,omitempty"` // the pool had few free addresses when it was read last
	After  int64 `json:"after,omitempty"`  // seconds since 1970; no upkeep before
	Fails  int   `json:"fails,omitempty"`  // of upkeep, in a row

	partial bool // Used has the uses of one attachment only
}

// Use is the owner of an address.
type Use struct {
	ContainerID string `json:"id"`
	IfName      string `json:"ifname"`
	Network     string `json:"network"` // name of the CNI network
	Range       int    `json:"range"`   // index in the configuration
	PodRef      string `json:"podref,omitempty"`
	PodUID      string `json:"uid,omitempty"`
	Fixed       bool   `json:"fixed,omitempty"` // it was asked for
	Since       int64  `json:"since,omitempty"`
}

// Owed is a DEL of an attachment that this file does not have: whereabouts may have made it.
type Owed struct {
	ContainerID string `json:"id"`
	IfName      string `json:"ifname"`
}

// Current reports whether the file is of this machine and boot. If not, its claims count only after the pool was read.
func (s *State) Current(n Node) bool {
	return s.Machine == n.Machine && s.Boot == n.Boot && s.Node != ""
}

// Begin makes the file one of this boot, and of the pool of that range, without claims. name is the node's in the store.
func (s *State) Begin(n Node, name string, cidr netip.Prefix, network string) {
	s.Node, s.Machine, s.Boot, s.CIDR, s.Network = name, n.Machine, n.Boot, cidr, network
	s.Lifecycle, s.Used = Lifecycle{}, map[uint64]Use{}
	s.Scarce, s.After, s.Fails = false, 0, 0
}

// Owns returns the claim by which the node has an offset.
func (s *State) Owns(off uint64) (Claim, bool) {
	for _, c := range s.Claims {
		if c.Has(off) {
			return c, true
		}
	}
	return Claim{}, false
}

// Next returns the offset that an ADD without a wish gets: the first unused one after the last, so that an address
// is not used again at once, or the lowest if the range wants that.
func (s *State) Next(r *pool.Range) (uint64, bool) {
	free := s.Spare(r)
	if len(free) == 0 {
		return 0, false
	}
	for _, off := range free {
		if off > s.Last && !r.Lowest {
			return off, true
		}
	}
	return free[0], true
}

// Spare returns the offsets that are claimed, unused and handed out by the range, ascending.
func (s *State) Spare(r *pool.Range) []uint64 {
	return slices.DeleteFunc(s.Unused(), func(off uint64) bool { return !r.Dynamic(off) })
}

// Unused returns the offsets that are claimed, not in use and not kept for an owner, ascending.
func (s *State) Unused() []uint64 {
	var out []uint64
	if s.partial {
		for _, off := range s.FreeList {
			if _, used := s.Used[off]; !used {
				out = append(out, off)
			}
		}
		return out
	}
	for _, c := range s.Claims {
		for _, off := range c.Offsets() {
			if _, used := s.Used[off]; !used && c.Hold == "" {
				out = append(out, off)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Held returns the offset that the node has for an owner which outlives its pods.
func (s *State) Held(owner string) (uint64, bool) {
	for _, c := range s.Claims {
		if c.Hold == owner && owner != "" && len(c.Runs) > 0 {
			return c.Runs[0][0], true
		}
	}
	return 0, false
}

// Free frees an address for what comes next: another pod of the node, or the owner that it is kept for.
func (s *State) Free(off uint64) {
	delete(s.Used, off)
	switch c, owned := s.Owns(off); {
	case c.Hold != "":
		s.Rest(off)
	case s.partial && owned:
		at, there := slices.BinarySearch(s.FreeList, off)
		if !there {
			s.FreeList = slices.Insert(s.FreeList, at, off)
		}
	}
}

// RestIdle takes out of use what is kept for an owner and what no pod has: a call was killed before it took it.
func (s *State) RestIdle() {
	for _, off := range s.idle() {
		s.Rest(off)
	}
}

// Idle reports whether an address is kept for an owner and no pod of the node has it.
func (s *State) Idle() bool { return len(s.idle())+len(s.Resting) > 0 }

func (s *State) idle() []uint64 {
	var out []uint64
	for _, c := range s.Claims {
		if c.Hold == "" || len(c.Runs) == 0 { // a claim without an address is of a damaged file
			continue
		}
		if _, used := s.Used[c.Runs[0][0]]; !used {
			out = append(out, c.Runs[0][0])
		}
	}
	return out
}

// Of returns the offsets that an attachment has.
func (s *State) Of(containerID, ifName string) []uint64 {
	var out []uint64
	for off, u := range s.Used {
		if u.ContainerID == containerID && u.IfName == ifName {
			out = append(out, off)
		}
	}
	slices.Sort(out)
	return out
}

// maxGone bounds the released attachments that a node remembers.
const maxGone = 256

// Owe notes that the store has to release what whereabouts allocated for an attachment of the network.
func (s *State) Owe(o Owed, cidr netip.Prefix, network string) {
	if !s.CIDR.IsValid() {
		s.CIDR, s.Network = cidr, network
	}
	if !slices.Contains(s.Owed, o) {
		s.Owed = append(s.Owed, o)
	}
}

// Paid notes that the store has released those.
func (s *State) Paid(done []Owed) {
	gone := map[Owed]bool{}
	for _, o := range done {
		gone[o] = true
	}
	s.Owed = slices.DeleteFunc(s.Owed, func(o Owed) bool { return gone[o] })
}

// Release frees what an attachment has, and remembers that: the runtime repeats a DEL. It reports whether there was
// something.
func (s *State) Release(containerID, ifName string) bool {
	offsets := s.Of(containerID, ifName)
	for _, off := range offsets {
		s.Free(off)
	}
	if len(offsets) > 0 {
		s.Remember(containerID, ifName)
	}
	return len(offsets) > 0
}

// Remember notes that an attachment has nothing in the pool.
func (s *State) Remember(containerID, ifName string) {
	if s.Released(containerID, ifName) {
		return
	}
	s.Gone = append(s.Gone, hash(containerID+"/"+ifName))
	s.Gone = s.Gone[max(0, len(s.Gone)-maxGone):]
}

// Released reports whether an attachment was released here, as far as the node remembers.
func (s *State) Released(containerID, ifName string) bool {
	return slices.Contains(s.Gone, hash(containerID+"/"+ifName))
}

// tryFor is for how many seconds upkeep reads the pool to see whether a request without an answer has arrived.
const tryFor = 60

// Due reports whether upkeep has something to do, at a time in seconds since 1970.
func (s *State) Due(r *pool.Range, blockSize int, now int64) bool {
	if now < s.After && (s.Fails > 0 || !s.Idle()) { // the successor of a pod waits for its address
		return false
	}
	unused := len(s.Unused())
	return s.Pending(now) || s.Scarce && unused > 0 || High(unused, blockSize) || !s.Scarce && r != nil && s.ClaimAhead(r, blockSize)
}

// Pending reports whether the store does not know something that it has to, or the node does not know what became of a request.
func (s *State) Pending(now int64) bool {
	return s.Unanswered(now) || len(s.Owed)+len(s.Giving) > 0 || s.Idle()
}

// Unanswered reports whether a request may still arrive whose answer did not. Later the next claim finds it.
func (s *State) Unanswered(now int64) bool { return len(s.Trying) > 0 && now < s.Claimed+tryFor }

// ClaimAhead reports whether few addresses are left for further pods. A node without a pod needs none
// ahead: upkeep that began before the operator released all of them would claim a block again.
func (s *State) ClaimAhead(r *pool.Range, blockSize int) bool {
	claimed := uint64(0)
	for _, c := range s.Claims {
		for _, run := range c.Runs {
			if c.Hold == "" {
				claimed += run[1] - run[0] + 1
			}
		}
	}
	return blockSize > 1 && len(s.Spare(r)) <= blockSize/4 && claimed > uint64(len(s.Unused()))
}

// High reports whether a node has more unused addresses than it should keep.
func High(unused, blockSize int) bool { return unused > MostUnused(blockSize) }

// MostUnused is how many unused addresses a node keeps.
func MostUnused(blockSize int) int { return 2 * blockSize }
