// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// fullPause is after how many repetitions the pause for a full pool grows no more: another node
// gives back at any time.
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

// has reports whether the node has what is wanted, as its file was when it was last read.
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

// claim makes one request for what is wanted: by what the cache has of the pool if that is fresh,
// which saves reading it. A cache that misleads is dropped. ahead says that no ADD waits: it claims
// nothing while addresses are scarce.
func (o *operation) claim(ctx context.Context, ahead bool) error {
	v := o.pools.cachedView(&o.file.state)
	if v == nil {
		var err error
		if v, err = o.pools.readAll(ctx); err == nil {
			err = o.reconcile(ctx, v)
		}
		switch {
		case err != nil:
			return err
		case o.has() && !ahead:
			return nil
		case o.q.Hold != "":
			return o.claimHeld(ctx, v)
		}
	}
	offsets, scarce, err := o.pick(ctx, v, o.size())
	none := err != nil || ahead && scarce
	if !none {
		err = o.claimBlock(ctx, v, offsets, scarce)
	}
	switch conflict := errors.Is(err, ErrConflict); {
	case v.cached != "" && (none || conflict):
		o.pools.dropView()
		return o.claim(ctx, ahead)
	case none && !conflict:
		return errors.Join(err, o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Scarce = scarce || err != nil }))
	}
	return err
}

const (
	// burstPause is how soon after another claim, in seconds, one counts as part of a burst: many
	// pods start on the node.
	burstPause = 10
	// maxBurst is what one change of any store can have.
	maxBurst = 120
)

// size returns how many addresses to claim: a block, or as much as the node may keep unused if it
// has claimed a block a moment ago.
func (o *operation) size() int {
	s, block := &o.file.state, o.q.BlockSize
	if block == 1 || o.q.Wanted.IsValid() || o.c.now().Unix()-s.Claimed > burstPause {
		return block
	}
	return max(block, min(maxBurst, blocks.MostUnused(block)-len(s.Unused())))
}

// pick chooses offsets for the next claim. If there is none it frees what is kept for an owner that
// has gone, and says by ErrConflict that it did: the caller reads the pool again.
func (o *operation) pick(ctx context.Context, v *view, size int) (offsets []uint64, scarce bool, err error) {
	if c := o.chooser(v); o.q.Wanted.IsValid() {
		offsets, err = c.wanted()
	} else {
		offsets, scarce, err = c.block(size)
	}
	if v.cached != "" || !errors.As(err, new(*FullError)) {
		return offsets, scarce, err
	}
	if freed, ferr := o.freeGone(ctx, v); ferr != nil {
		return nil, false, ferr
	} else if freed {
		return nil, false, ErrConflict
	}
	return nil, scarce, err
}

// claimBlock claims addresses that seem to be free.
func (o *operation) claimBlock(ctx context.Context, v *view, offsets []uint64, scarce bool) error {
	claim := blocks.Claim{ID: newID(o.c.Node, o.file.state.Node), Runs: blocks.Runs(offsets)}
	change := pool.Change{Add: map[uint64]pool.Entry{}, Range: v.cached}
	for _, off := range offsets {
		change.Add[off] = pool.Entry{ID: claim.ID}
	}
	return o.try(ctx, claim, change, func(s *blocks.State) { s.Scarce, s.Claimed = scarce, o.c.now().Unix() })
}
