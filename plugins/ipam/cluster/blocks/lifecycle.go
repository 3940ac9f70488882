// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// ClaimState is how far a claim of addresses is. docs/dev/adr/0040-cluster-addresses.md says which
// request goes between two states.
type ClaimState string

// States of a claim. The file has a list for each but Free.
const (
	Free    ClaimState = "free"    // the node has nothing to do with it
	Trying  ClaimState = "trying"  // asked for; the store may or may not have it
	Claimed ClaimState = "claims"  // usable
	Giving  ClaimState = "giving"  // usable no more; the store may still have it
	Resting ClaimState = "resting" // of an owner whose pod has ended here; the store may still have it for this node
)

// Lifecycle is the claims of a node by their state. Only the transitions below change the lists:
//
//	free --Try--> trying --Confirm--> claims --GiveBack--> giving --Forget--> free
//	              trying --Refuse---> free
//	                                  claims --Rest------> resting --Forget-> free
//	                                  claims --Drop------> free
//
// A new boot begins with empty lists: see State.Begin.
type Lifecycle struct {
	Claims  []Claim `json:"claims,omitempty"`
	Trying  []Claim `json:"trying,omitempty"`
	Giving  []Claim `json:"giving,omitempty"`
	Resting []Claim `json:"resting,omitempty"`
}

// Try notes what the store is about to be asked for.
func (l *Lifecycle) Try(c Claim) { l.Trying = append(l.Trying, c) }

// Refuse forgets a request that has certainly not been carried out.
func (l *Lifecycle) Refuse(id string) {
	l.move(Trying, Free, func(c Claim, _ uint64) bool { return c.ID == id })
}

// Confirm makes usable what was asked for and what the store has. mirrors are the other pools that
// have the entries too. A request that has left nothing in the store may arrive yet, because a
// change comes whole or not at all. Confirm returns how many addresses were removed from the pool
// since a request arrived.
func (l *Lifecycle) Confirm(taken map[uint64]pool.Entry, mirrors []string) (removed int) {
	confirmed := l.move(Trying, Claimed, func(c Claim, off uint64) bool { return taken[off].ID == c.ID })
	for _, arrived := range confirmed {
		for _, gone := range l.move(Trying, Free, func(c Claim, _ uint64) bool { return c.ID == arrived.ID }) {
			removed += len(gone.Offsets())
		}
	}
	for i := range l.Claims {
		l.Claims[i].Mirrors = mirrors
	}
	return removed
}

// GiveBack takes addresses out of use, which then go back to the store.
func (l *Lifecycle) GiveBack(offsets []uint64) {
	l.move(Claimed, Giving, oneOf(offsets))
}

// Rest takes the address of an owner out of use whose pod has ended here. The store does not know
// which nodes have a shared one.
func (l *Lifecycle) Rest(off uint64) {
	is := func(shared bool) func(c Claim, at uint64) bool {
		return func(c Claim, at uint64) bool { return at == off && pool.Hold{Owner: c.Hold}.Shared() == shared }
	}
	l.move(Claimed, Resting, is(false))
	l.move(Claimed, Free, is(true))
}

// Drop takes addresses out of use that the store has for another.
func (l *Lifecycle) Drop(offsets []uint64) {
	l.move(Claimed, Free, oneOf(offsets))
}

func oneOf(offsets []uint64) func(c Claim, off uint64) bool {
	set := make(map[uint64]bool, len(offsets))
	for _, off := range offsets {
		set[off] = true
	}
	return func(_ Claim, off uint64) bool { return set[off] }
}

// Forget ends claims under Giving and Resting that the store does not have for this node any more.
func (l *Lifecycle) Forget(done []Claim) {
	is := func(c Claim, off uint64) bool {
		return slices.ContainsFunc(done, func(d Claim) bool { return d.ID == c.ID && d.Has(off) })
	}
	l.move(Giving, Free, is)
	l.move(Resting, Free, is)
}

// move takes a part of the claims in one state to another, and returns it.
func (l *Lifecycle) move(from, to ClaimState, part func(c Claim, off uint64) bool) []Claim {
	list := l.in(from)
	var stay, leave []Claim
	for _, c := range *list {
		var here, there []uint64
		for _, off := range c.Offsets() {
			if part(c, off) {
				there = append(there, off)
			} else {
				here = append(here, off)
			}
		}
		if len(here) > 0 {
			stay = append(stay, c.with(here))
		}
		if len(there) > 0 {
			leave = append(leave, c.with(there))
		}
	}
	*list = stay
	if to != Free {
		*l.in(to) = append(*l.in(to), leave...)
	}
	return leave
}

func (l *Lifecycle) in(s ClaimState) *[]Claim {
	switch s {
	case Trying:
		return &l.Trying
	case Giving:
		return &l.Giving
	case Resting:
		return &l.Resting
	}
	return &l.Claims
}

// Claim is what one request to the store claimed: entries with that ID.
type Claim struct {
	ID      string      `json:"id"`
	Runs    [][2]uint64 `json:"runs"`              // first and last offset, ascending
	Mirrors []string    `json:"mirrors,omitempty"` // other pools that have the entries too
	Hold    string      `json:"hold,omitempty"`    // the owner that the address is kept for: no other pod gets it
}

// with returns the claim of some of its addresses.
func (c Claim) with(offsets []uint64) Claim {
	c.Runs = Runs(offsets)
	return c
}

// Offsets returns the offsets of the claim.
func (c Claim) Offsets() []uint64 {
	var out []uint64
	for _, r := range c.Runs {
		for off := r[0]; off <= r[1]; off++ {
			out = append(out, off)
		}
	}
	return out
}

// Has reports whether the claim has the offset.
func (c Claim) Has(off uint64) bool {
	return slices.ContainsFunc(c.Runs, func(r [2]uint64) bool { return r[0] <= off && off <= r[1] })
}

// Runs packs offsets.
func Runs(offsets []uint64) [][2]uint64 {
	var out [][2]uint64
	for _, off := range slices.Sorted(slices.Values(offsets)) {
		if n := len(out); n > 0 && out[n-1][1]+1 >= off {
			out[n-1][1] = max(out[n-1][1], off)
			continue
		}
		out = append(out, [2]uint64{off, off})
	}
	return out
}
