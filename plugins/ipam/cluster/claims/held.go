// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// claimHeld makes the address usable here that the pool keeps for an owner, or begins to keep one.
func (o *operation) claimHeld(ctx context.Context, v *view) error {
	off, found, err := o.findHeld(ctx, v.own)
	if err != nil {
		return err
	}
	if found {
		h, _ := pool.ParseHold(v.own[off].ID)
		return o.attach(ctx, off, h)
	}
	offsets, _, err := o.pick(ctx, v, 1)
	if errors.As(err, new(*FullError)) {
		return o.spareOne(ctx, err)
	}
	if err != nil {
		return err
	}
	return o.attach(ctx, offsets[0], pool.Hold{})
}

// findHeld returns the offset that the pool keeps for the owner. There are two if a request came
// late: the one that a node has, or that is wanted, or the first, stays.
func (o *operation) findHeld(ctx context.Context, taken map[uint64]pool.Entry) (best uint64, found bool, err error) {
	extra := pool.Change{Remove: map[uint64]pool.Entry{}}
	wanted, _ := pool.Offset(o.q.Range.CIDR, o.q.Wanted)
	for _, off := range slices.Sorted(maps.Keys(taken)) {
		h, ok := pool.ParseHold(taken[off].ID)
		a, _ := pool.Addr(o.q.Range.CIDR, off)
		if !ok || h.IsMirror() || !sameObject(h.Owner, o.q.Hold) || o.q.Range.Refuses(a) != "" { // the configuration may have changed
			continue
		}
		if h.Owner != o.q.Hold {
			return 0, false, &FullError{Pool: o.q.Pool, Range: o.q.Range.CIDR.String(), Wanted: a.String(), WantedOfOwner: taken[off].Holder()}
		}
		loser := off
		if !found || h.Taken() || off == wanted {
			loser, best = best, off
		}
		if l, _ := pool.ParseHold(taken[loser].ID); found && !l.Taken() && !l.Shared() { // a shared one may be in use
			extra.Remove[loser] = taken[loser]
		}
		found = true
	}
	if !extra.Empty() {
		_, err = o.pools.change(ctx, o.q.Pool, extra)
	}
	return best, found, err
}

// sameObject reports whether two owners are one object of the cluster. An IPAMClaim is kept for a
// virtual machine or for other pods, never for both.
func sameObject(a, b string) bool {
	ka, na := pool.Hold{Owner: a}.Kind()
	kb, nb := pool.Hold{Owner: b}.Kind()
	if ka == pool.HeldPod || kb == pool.HeldPod {
		return a == b
	}
	return slices.Equal(na[:2], nb[:2])
}

// attach enters this node as the one whose pod has the address. old is what the pool keeps, or the
// zero value.
func (o *operation) attach(ctx context.Context, off uint64, old pool.Hold) error {
	s := &o.file.state
	here := pool.NodeID{Node: s.Node, Machine: o.c.Node.Machine, Boot: o.c.Node.Boot}
	// What this node was giving back to the owner is taken again under another ID, because the
	// request for that may be under way.
	resting := slices.ContainsFunc(s.Resting, func(r blocks.Claim) bool { return r.ID == old.String() })
	if old.Taken() && !resting && (old.Node.Machine != here.Machine || old.Node.Boot == here.Boot) {
		dead, err := o.c.IsDead(ctx, old.Node)
		if err != nil {
			return err
		}
		if !dead {
			a, _ := pool.Addr(o.q.Range.CIDR, off)
			return &HeldError{Pool: o.q.Pool, Address: a.String(), Holder: pool.Entry{ID: old.String()}.Holder()}
		}
	}
	next := pool.Hold{Owner: o.q.Hold, Nonce: nonce(), Node: here}
	if next.Shared() {
		next.Node = pool.NodeID{}
	}
	claim := blocks.Claim{ID: next.String(), Runs: blocks.Runs([]uint64{off}), Hold: o.q.Hold}
	change := pool.Change{Add: map[uint64]pool.Entry{off: {ID: claim.ID}}}
	if old.Owner != "" {
		change = pool.Change{Replace: map[uint64][2]pool.Entry{off: {{ID: old.String()}, {ID: claim.ID}}}}
	}
	if next.Shared() && old.Owner != "" { // other nodes may have it as well, and nothing changes in the store
		claim.ID, change = old.String(), pool.Change{}
	}
	return o.try(ctx, claim, change, func(*blocks.State) {})
}

// spareOne gives one unused address of this node back, or the one that is wanted, so that it can be
// kept for the owner. full is returned if the node has none.
func (o *operation) spareOne(ctx context.Context, full error) error {
	some := false
	err := o.release(ctx, func(unused []uint64) []uint64 {
		wanted, ok := pool.Offset(o.q.Range.CIDR, o.q.Wanted)
		one := slices.DeleteFunc(unused, func(off uint64) bool {
			if o.q.Wanted.IsValid() && ok {
				return off != wanted
			}
			return !o.q.Range.Dynamic(off)
		})
		some = len(one) > 0
		return one[:min(1, len(one))]
	})
	if err != nil || some {
		return errors.Join(err, ErrConflict)
	}
	return full
}

// releaseHeld tells the store that no pod of this node has the addresses any more that it keeps for
// their owners. A call that was killed may have left some that no pod has taken.
func (o *operation) releaseHeld(ctx context.Context) error {
	return o.c.retry(ctx, func() error {
		if err := o.file.update(ctx, withUses, (*blocks.State).RestIdle); err != nil {
			return err
		}
		resting := slices.Clone(o.file.state.Resting)
		if len(resting) == 0 {
			return nil
		}
		_, taken, err := o.pools.read(ctx)
		if err != nil {
			return err
		}
		change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
		for _, claim := range resting {
			if hasEntry(taken, claim) {
				change.Replace[claim.Runs[0][0]] = [2]pool.Entry{{ID: claim.ID}, AtRest(pool.Hold{Owner: claim.Hold})}
			}
		}
		if !change.Empty() {
			_, err = o.pools.change(ctx, o.q.Pool, change)
		}
		if err != nil {
			return err
		}
		return o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Forget(resting) })
	})
}
