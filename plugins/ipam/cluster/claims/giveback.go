// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// allBut chooses all unused addresses but some.
func allBut(keep int) func(unused []uint64) []uint64 {
	return func(unused []uint64) []uint64 { return unused[min(keep, len(unused)):] }
}

// release gives chosen ones of the unused addresses back.
func (o *operation) release(ctx context.Context, choose func(unused []uint64) []uint64) error {
	some := false
	err := o.file.with(ctx, true, func(f *blocks.File) error {
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

// give removes from the store what the node gives back. What does not get done stays under Giving for the next time.
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
	return o.file.updateState(ctx, func(s *blocks.State) { s.Forget(giving) })
}

// giveUnseen removes from the pool what it should have, without reading it before. It reports false if the pool has something else, or
// another one may overlap.
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

// releaseHeld tells the store that no pod of this node has the addresses any more that it keeps for their owners. A call that was killed
// may have left some that no pod has taken.
func (o *operation) releaseHeld(ctx context.Context) error {
	return o.c.retry(ctx, func() error {
		if err := o.file.updateAll(ctx, (*blocks.State).RestIdle); err != nil {
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
		return o.file.updateState(ctx, func(s *blocks.State) { s.Forget(resting) })
	})
}
