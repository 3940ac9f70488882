// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// This file takes claims through the states of blocks.Lifecycle, in the order of the tables of
// docs/dev/adr/0040-cluster-addresses.md: each state is in the node's file before the request that it
// is about, and what a kill leaves there is ended by the next reconcile.
//
//	try:     file: trying  -> change of the pool -> file: claims
//	release: file: giving  -> change of the pool -> file: forgotten

// try takes a claim through its states: trying, the request, and usable if the store has it.
// docs/dev/adr/0040-cluster-addresses.md says what a kill in between leaves.
func (o *operation) try(ctx context.Context, claim blocks.Claim, change pool.Change, note func(s *blocks.State)) error {
	err := o.file.update(ctx, stateOnly, func(s *blocks.State) {
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
		return errors.Join(err, o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Refuse(claim.ID) }))
	}
	if err != nil { // it may arrive yet
		return err
	}
	return o.confirm(ctx, obj)
}

// confirm makes claims usable that the store has. obj is the pool as a change has left it, or nil.
// With enable_overlapping_ranges the claims go into every pool of the network that has the
// addresses too, and the node reads them after it has claimed. So of two nodes that claim one
// address in two pools at a time, at least one sees the other, and gives the address up.
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

// mirror enters the node's claims into the other pools. It returns the addresses that others have
// there.
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

// commit makes the claims usable that the pool has, but not what another has in a pool that
// overlaps. own is nil if nothing is known of the pool.
func (o *operation) commit(ctx context.Context, own map[uint64]pool.Entry, others []overlap, lost map[uint64]pool.Entry) error {
	var names []string
	for _, other := range others {
		names = append(names, other.name)
	}
	err := o.file.update(ctx, withUses, func(s *blocks.State) {
		if own != nil {
			dropLost(o.c.Log, s, own)
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

// allBut chooses all unused addresses but some.
func allBut(keep int) func(unused []uint64) []uint64 {
	return func(unused []uint64) []uint64 { return unused[min(keep, len(unused)):] }
}

// release gives chosen ones of the unused addresses back.
func (o *operation) release(ctx context.Context, choose func(unused []uint64) []uint64) error {
	some := false
	err := o.file.with(ctx, withUses, func(f *blocks.File) error {
		back := choose(f.Unused())
		if some = f.Current(o.c.Node) && len(back) > 0; !some {
			return nil
		}
		f.GiveBack(back)
		return f.SaveDurably() // before the store hears of it
	})
	if err != nil || !some {
		return err
	}
	return o.give(ctx)
}

// give removes from the store what the node gives back. What does not get done stays under Giving
// for the next time.
func (o *operation) give(ctx context.Context) error {
	giving := o.file.state.Giving
	if len(giving) == 0 {
		return nil
	}
	err := o.c.retry(ctx, func() error {
		if done, err := o.giveUnseen(ctx, giving); done || err != nil {
			return err
		}
		own, others, err := o.pools.listOverlaps(ctx)
		if err != nil {
			return err
		}
		for _, other := range append(others, overlap{o.q.Pool, o.q.Range.CIDR, own}) {
			change := pool.Change{Remove: map[uint64]pool.Entry{}}
			for _, claim := range giving {
				e := pool.Entry{ID: claim.ID}
				if other.name != o.q.Pool {
					e.ID = pool.MirrorID(claim.ID)
				}
				for _, off := range claim.Offsets() {
					if there, ok := translate(o.q.Range.CIDR, off, other.cidr); ok && other.taken[there] == e {
						change.Remove[there] = e
					}
				}
			}
			if !change.Empty() {
				if _, err := o.pools.change(ctx, other.name, change); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Forget(giving) })
}

// giveUnseen removes from the pool what it should have, without reading it before. It reports false
// if the pool has something else, or another one may overlap.
func (o *operation) giveUnseen(ctx context.Context, giving []blocks.Claim) (bool, error) {
	k := &o.pools.cache
	if k.UID == "" || !o.pools.knownNotOverlapping(k.UID) {
		return false, nil
	}
	change := pool.Change{Remove: map[uint64]pool.Entry{}}
	for _, claim := range giving {
		for _, off := range claim.Offsets() {
			change.Remove[off] = pool.Entry{ID: claim.ID}
		}
	}
	obj, err := o.pools.change(ctx, o.q.Pool, change)
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	if err == nil && obj != nil {
		if taken, terr := obj.Taken(); terr == nil {
			k.cachePool(obj, taken, o.c.now())
			k.save()
		}
	}
	return true, err
}

// dropLost takes addresses out of use that the store does not have for this node any more. A pod
// that has one keeps it: the node cannot take it away, and another may have it now.
func dropLost(logger *log.Logger, s *blocks.State, taken map[uint64]pool.Entry) {
	var lost []uint64
	for _, claim := range s.Claims {
		for _, off := range claim.Offsets() {
			if taken[off].ID == claim.ID {
				continue
			}
			lost = append(lost, off)
			if u, used := s.Used[off]; used {
				a, _ := pool.Addr(s.CIDR, off)
				logger.Error("the pool gave an address away that a container of this node has", log.String("pool", s.Pool),
					log.Stringer(log.KeyAddress, a), log.String(log.KeyContainerID, u.ContainerID), log.String("now", taken[off].Holder()))
			}
		}
	}
	s.Drop(lost)
}

// newID returns the ID of the next claim of a node that has that name in the store. Every claim has
// another one: an answer to an older request, which may arrive at any time, fits no newer claim.
func newID(n blocks.Node, name string) string {
	return pool.NodeID{Node: name, Machine: n.Machine, Boot: n.Boot, Nonce: nonce()}.String()
}

func nonce() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }
