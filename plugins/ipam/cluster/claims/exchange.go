// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// IsMirror reports whether an entry stands for a claim in an overlapping pool.
func IsMirror(n pool.NodeID) bool { return isMirror(n) }

// IsDead reports whether the boot of a claim is certainly over.
func (c *Claimer) IsDead(ctx context.Context, id pool.NodeID) (bool, error) { return c.isDead(ctx, id) }

// IsFree reports whether no pod has an entry any more that is kept for an owner: see Store.Gone.
func (c *Claimer) IsFree(ctx context.Context, e pool.Entry) (bool, error) {
	if h, ok := pool.ParseHold(e.ID); !ok || h.IsMirror() {
		return false, nil
	}
	x := verdicts{c: c, gone: map[string]bool{}}
	if err := x.ask(ctx, map[uint64]pool.Entry{0: e}); err != nil {
		return false, err
	}
	return x.free(ctx, nil, 0, e)
}

// AtRest returns the entry of a hold that no node has.
func AtRest(h pool.Hold) pool.Entry {
	return pool.Entry{ID: pool.Hold{Owner: h.Owner, Nonce: nonce()}.String()}
}

// TakeUp brings the node's file and the pool together, without a wish for more.
func (c *Claimer) TakeUp(ctx context.Context, q *Request) error {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return err
	}
	defer unlock()
	return c.catchUp(ctx, q)
}

// catchUp is TakeUp for a caller that has the lock.
func (c *Claimer) catchUp(ctx context.Context, q *Request) error {
	_, taken, err := c.read(ctx, q)
	if err == nil {
		_, err = c.takeUp(ctx, q, taken)
	}
	return err
}

// Import turns allocations of pods into claims of the node that the containers use. It returns how many.
func (c *Claimer) Import(ctx context.Context, q *Request, chosen func(e pool.Entry) bool) (int, error) {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return 0, err
	}
	defer unlock()
	for n := 0; n < tries; n++ {
		_, taken, err := c.read(ctx, q)
		if err == nil {
			taken, err = c.takeUp(ctx, q, taken)
		}
		if err != nil {
			return 0, err
		}
		change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
		err = c.update(ctx, q, func(s *blocks.State) error {
			id := c.newID(s.Node)
			for off, e := range taken {
				if _, node := pool.ParseNodeID(e.ID); node || !chosen(e) {
					continue
				}
				change.Replace[off] = [2]pool.Entry{e, {ID: id}}
				// Before the store has it, the node does not own it, and no other pod gets it.
				s.Used[off] = blocks.Use{ContainerID: e.ID, IfName: e.IfName, PodRef: e.PodRef}
			}
			if !change.Empty() {
				s.Try(blocks.Claim{ID: id, Runs: blocks.Runs(slices.Collect(maps.Keys(change.Replace)))})
			}
			return nil
		})
		if err != nil || change.Empty() {
			return 0, err
		}
		_, err = c.change(ctx, q.Pool, change)
		if err == nil {
			return len(change.Replace), c.confirm(ctx, q)
		}
		if !errors.Is(err, ErrConflict) {
			return 0, err
		}
		err = c.update(ctx, q, func(s *blocks.State) error {
			for off := range change.Replace {
				delete(s.Used, off)
			}
			return nil
		})
		if err == nil {
			err = c.pause(ctx, n)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("import of pool %s: %w", q.Pool, ErrConflict)
}

// Export turns the addresses that containers of the node use into allocations and reservations of their pods, as whereabouts has
// them. It returns how many. The node's file forgets them.
func (c *Claimer) Export(ctx context.Context, q *Request) (int, error) {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return 0, err
	}
	defer unlock()
	n, node, err := c.export(ctx, q)
	if n == 0 {
		return n, err
	}
	return n, errors.Join(err, c.sweep(ctx, q, node))
}

// export changes store and file while no ADD can take an address.
func (c *Claimer) export(ctx context.Context, q *Request) (n int, node string, err error) {
	f, err := c.openAll(ctx, q)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
	for off, u := range f.Used {
		if claim, ok := f.Owns(off); ok {
			change.Replace[off] = [2]pool.Entry{{ID: claim.ID}, {ID: u.ContainerID, PodRef: u.PodRef, IfName: u.IfName}}
		}
	}
	if change.Empty() {
		return 0, f.Node, nil
	}
	// The node's entries in pools that overlap go behind this, and only a reservation keeps whereabouts from the addresses there.
	rerr := c.reserve(ctx, q, &change)
	if change.Empty() || rerr != nil && !errors.Is(rerr, ErrConflict) {
		return 0, f.Node, rerr
	}
	if _, err := c.change(ctx, q.Pool, change); err != nil {
		return 0, f.Node, err
	}
	for off := range change.Replace {
		f.Drop([]uint64{off})
		delete(f.Used, off)
	}
	return len(change.Replace), f.Node, errors.Join(rerr, f.SaveDurably())
}
