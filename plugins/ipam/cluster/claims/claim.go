// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// fullPause is after how many repetitions the pause for a full pool grows no more: another node gives back at any time.
const fullPause = 4

// ensure claims until the node has what is wanted.
func (o *operation) ensure(ctx context.Context) error {
	begin := o.c.now()
	for n := 0; !o.has(); n++ {
		err := o.claim(ctx, false)
		if err == nil {
			continue
		}
		waited := o.c.now().Sub(begin)
		var full *FullError
		switch {
		case errors.As(err, &full):
			if full.Wanted != "" || !full.Lent || waited >= o.c.FullWait {
				return err
			}
			n = min(n, fullPause)
		case errors.As(err, new(*HeldError)), errors.Is(err, ErrUnavailable): // the DEL of an earlier pod may be on its way to the store
			if waited >= o.c.Patience {
				return err
			}
		case !errors.Is(err, ErrConflict) || n >= tries:
			return err
		}
		if o.c.pause(ctx, n) != nil {
			return err
		}
		if err := o.file.load(ctx); err != nil { // a DEL may have given an address back
			return err
		}
	}
	return nil
}

// has reports whether the node has what is wanted, as of the last look at its file.
func (o *operation) has() bool {
	s := &o.file.state
	switch {
	case !s.Current(o.c.Node):
		return false
	case o.q.Hold != "":
		_, has := s.Held(o.q.Hold)
		return has
	case o.q.Wanted.IsValid():
		off, _ := pool.Offset(o.q.Range.CIDR, o.q.Wanted)
		claim, owned := s.Owns(off)
		return owned && claim.Hold == ""
	}
	return len(s.Spare(&o.q.Range)) > 0
}

// claim makes one request for what is wanted: from the cache if it is fresh, which saves reading the pool, or by what the pool has. ahead
// says that no ADD waits: it claims nothing while addresses are scarce.
func (o *operation) claim(ctx context.Context, ahead bool) error {
	if v := o.cachedView(); v != nil {
		s := &o.file.state
		offsets, scarce, err := o.chooseBlock(v, o.size(), s.Node)
		if err == nil && !(scarce && ahead) { // otherwise the pool may have some by now
			err = o.claimBlock(ctx, offsets, scarce, o.pools.cache.Range)
			if !errors.Is(err, ErrConflict) {
				return err
			}
			o.pools.cache.Seen = time.Time{}
			o.pools.cache.save()
		}
	}
	v, err := o.pools.readAll(ctx)
	if err != nil {
		return err
	}
	if err := o.reconcile(ctx, v); err != nil {
		return err
	}
	switch {
	case o.has() && !ahead:
		return nil
	case o.q.Hold != "":
		return o.claimHeld(ctx, v)
	}
	offsets, scarce, err := o.pick(ctx, v, o.size())
	if errors.Is(err, ErrConflict) {
		return err
	}
	if err != nil || ahead && scarce {
		return errors.Join(err, o.file.setScarce(ctx, scarce || err != nil))
	}
	return o.claimBlock(ctx, offsets, scarce, "")
}

// cachedView returns the pool as the cache has it, or nil if the pool has to be read before a claim.
func (o *operation) cachedView() *view {
	k, s := &o.pools.cache, &o.file.state
	if o.q.Hold != "" || o.q.Wanted.IsValid() || k.UID == "" || k.Range == "" || !o.c.within(k.Seen, freshFor) || !o.pools.knownNotOverlapping(k.UID) ||
		o.q.Overlapping && !o.c.within(k.ReservedSeen, aloneFor) || !s.Current(o.c.Node) || s.CIDR != o.q.Range.CIDR {
		return nil
	}
	v := k.view()
	for _, t := range s.Trying { // the store may have it by now
		for _, off := range t.Offsets() {
			v.own[off] = pool.Entry{}
		}
	}
	return v
}

const (
	// burstPause is how soon after another claim, in seconds, one counts as part of a burst: many pods start on the node.
	burstPause = 10
	// maxBurst is what one change of any store can have.
	maxBurst = 120
)

// size returns how many addresses to claim: a block, or as much as the node may keep unused if it has claimed a block a moment ago.
func (o *operation) size() int {
	s, block := &o.file.state, o.q.BlockSize
	if block == 1 || o.q.Wanted.IsValid() || o.c.now().Unix()-s.Claimed > burstPause {
		return block
	}
	return max(block, min(maxBurst, blocks.MostUnused(block)-len(s.Unused())))
}

// pick chooses offsets for the next claim. If there is none it frees what is kept for an owner that has gone, and says by ErrConflict that
// it did: the caller reads the pool again.
func (o *operation) pick(ctx context.Context, v *view, size int) (offsets []uint64, scarce bool, err error) {
	if o.q.Wanted.IsValid() {
		offsets, err = o.chooseWanted(v)
	} else {
		offsets, scarce, err = o.chooseBlock(v, size, o.file.state.Node)
	}
	if !errors.As(err, new(*FullError)) {
		return offsets, scarce, err
	}
	if freed, ferr := o.freeGone(ctx, v); ferr != nil {
		return nil, false, ferr
	} else if freed {
		return nil, false, ErrConflict
	}
	return nil, scarce, err
}

// claimBlock claims addresses that seem to be free. in is the range that the object must have, or empty if it was read.
func (o *operation) claimBlock(ctx context.Context, offsets []uint64, scarce bool, in string) error {
	claim := blocks.Claim{ID: o.newID(o.file.state.Node), Runs: blocks.Runs(offsets)}
	change := pool.Change{Add: map[uint64]pool.Entry{}, Range: in}
	for _, off := range offsets {
		change.Add[off] = pool.Entry{ID: claim.ID}
	}
	return o.try(ctx, claim, change, func(s *blocks.State) { s.Scarce, s.Claimed = scarce, o.c.now().Unix() })
}

// try takes a claim through its states: trying, the request, and usable if the store has it. docs/adr/0040-cluster-addresses.md says what
// a kill in between leaves.
func (o *operation) try(ctx context.Context, claim blocks.Claim, change pool.Change, note func(s *blocks.State)) error {
	err := o.file.updateState(ctx, func(s *blocks.State) {
		if len(claim.Runs) > 0 {
			s.Try(claim)
		}
		note(s)
	})
	if err != nil {
		return err
	}
	var obj *pool.Object
	if !change.Empty() {
		obj, err = o.pools.change(ctx, o.q.Pool, change)
	}
	if errors.Is(err, ErrConflict) { // certainly not there
		return errors.Join(err, o.file.updateState(ctx, func(s *blocks.State) { s.Refuse(claim.ID) }))
	}
	if err != nil { // it may arrive yet
		return err
	}
	return o.confirm(ctx, obj)
}

// confirm makes claims usable that the store has. obj is the pool as a change has left it, or nil. With enable_overlapping_ranges the claims
// go into every pool of the network that has the addresses too, and the node looks after it has claimed: of two nodes that claim one
// address in two pools at a time, at least one sees the other, and lets go.
func (o *operation) confirm(ctx context.Context, obj *pool.Object) error {
	if obj != nil && o.pools.knownNotOverlapping(obj.UID) {
		own, err := checked(obj, o.q.Range.CIDR)
		if err != nil {
			return err
		}
		o.pools.cache.cachePool(obj, own, o.c.now())
		o.pools.cache.save()
		return o.commit(ctx, own, nil, nil)
	}
	var own, lost map[uint64]pool.Entry
	var others []overlap
	err := o.c.retry(ctx, func() (err error) {
		if own, others, err = o.pools.listOverlaps(ctx); err == nil {
			lost, err = o.mirror(ctx, own, others)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("confirm addresses of pool %s: %w", o.q.Pool, err)
	}
	return o.commit(ctx, own, others, lost)
}

// mirror enters the node's claims into the other pools. It returns the addresses that others have there.
func (o *operation) mirror(ctx context.Context, own map[uint64]pool.Entry, others []overlap) (map[uint64]pool.Entry, error) {
	lost := map[uint64]pool.Entry{}
	for _, other := range others {
		change := pool.Change{Add: map[uint64]pool.Entry{}, Replace: map[uint64][2]pool.Entry{}}
		for _, claim := range slices.Concat(o.file.state.Claims, o.file.state.Trying) {
			want := pool.Entry{ID: pool.MirrorID(claim.ID)}
			for _, off := range claim.Offsets() {
				there, ok := translate(o.q.Range.CIDR, off, other.cidr)
				if !ok || own[off].ID != claim.ID {
					continue
				}
				switch e, taken := other.taken[there]; {
				case !taken:
					change.Add[there] = want
				case e != want && (o.c.ownMirror(e) || mirrors(e, claim.Hold)):
					change.Replace[there] = [2]pool.Entry{e, want}
				case e != want:
					lost[off] = e
				}
			}
		}
		if !change.Empty() {
			if _, err := o.pools.change(ctx, other.name, change); err != nil {
				return nil, err
			}
		}
	}
	return lost, nil
}

// commit makes the claims usable that the pool has, but not what another has in a pool that overlaps. own is nil if nothing is known of the
// pool.
func (o *operation) commit(ctx context.Context, own map[uint64]pool.Entry, others []overlap, lost map[uint64]pool.Entry) error {
	var names []string
	for _, other := range others {
		names = append(names, other.name)
	}
	err := o.file.updateAll(ctx, func(s *blocks.State) {
		if own != nil {
			o.dropLost(s, own)
		}
		if removed := s.Confirm(own, names); removed > 0 {
			o.c.Log.Warn("entries of this node were removed from the pool", log.String("pool", o.q.Pool), log.Int("addresses", removed))
		}
		for off, e := range lost {
			if u, used := s.Used[off]; used {
				a, _ := pool.Addr(o.q.Range.CIDR, off)
				o.c.Log.Error("an address of this node is taken in an overlapping pool too", log.Stringer(log.KeyAddress, a),
					log.String(log.KeyContainerID, u.ContainerID), log.String("by", e.Holder()))
				delete(lost, off)
			}
		}
		s.GiveBack(slices.Collect(maps.Keys(lost)))
	})
	if err != nil {
		return err
	}
	return o.give(ctx)
}

// dropLost takes addresses out of use that the store does not have for this node any more. A pod that has one keeps it: the node
// cannot take it away, and another may have it now.
func (o *operation) dropLost(s *blocks.State, taken map[uint64]pool.Entry) {
	var lost []uint64
	for _, claim := range s.Claims {
		for _, off := range claim.Offsets() {
			if taken[off].ID == claim.ID {
				continue
			}
			lost = append(lost, off)
			if u, used := s.Used[off]; used {
				a, _ := pool.Addr(s.CIDR, off)
				o.c.Log.Error("the pool gave an address away that a container of this node has", log.String("pool", s.Pool),
					log.Stringer(log.KeyAddress, a), log.String(log.KeyContainerID, u.ContainerID), log.String("now", taken[off].Holder()))
			}
		}
	}
	s.Drop(lost)
}

// newID returns the ID of the next claim. Every claim has another one: an answer to an older request, which may arrive at
// any time, fits no newer claim.
func (o *operation) newID(node string) string {
	return pool.NodeID{Node: node, Machine: o.c.Node.Machine, Boot: o.c.Node.Boot, Nonce: nonce()}.String()
}

func nonce() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }
