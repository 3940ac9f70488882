// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// confirm makes claims usable that the store has. With enable_overlapping_ranges it enters them into every pool of the
// network that has the addresses too, and looks after it has claimed: of two nodes that claim one address in two pools
// at a time, at least one sees the other, and lets go.
func (c *Claimer) confirm(ctx context.Context, q *Request) error {
	for n := 0; n < tries; n++ {
		own, others, err := c.look(ctx, q)
		if err != nil {
			return err
		}
		c.others, c.elsewhere = others, c.notMine(q, others)
		lost, err := c.mirror(ctx, q, own, others)
		if errors.Is(err, ErrConflict) {
			if err := c.pause(ctx, n); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		return c.settle(ctx, q, own, others, lost)
	}
	return fmt.Errorf("confirm addresses of pool %s: %w", q.Pool, ErrConflict)
}

// overlap is another pool that has some of the addresses.
type overlap struct {
	name  string
	taken map[uint64]pool.Entry
	q     Request
}

// look returns the allocations of the pool, and the pools that overlap with it.
func (c *Claimer) look(ctx context.Context, q *Request) (map[uint64]pool.Entry, []overlap, error) {
	if !q.Overlapping {
		_, taken, err := c.read(ctx, q)
		return taken, nil, err
	}
	began := c.now()
	list, err := c.Store.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.overlaps(ctx, q, list, began)
}

// overlaps is look with a list of all pools that was asked for at a time.
func (c *Claimer) overlaps(ctx context.Context, q *Request, list []pool.Object, began time.Time) (map[uint64]pool.Entry, []overlap, error) {
	var err error
	var object *pool.Object
	var own map[uint64]pool.Entry
	var others []overlap
	var nodes map[string]bool
	for i := range list {
		o := &list[i]
		if o.Name == q.Pool {
			if own, err = checked(o, q.Range.CIDR); err != nil {
				return nil, nil, err
			}
			object = o
			continue
		}
		p, err := o.Prefix()
		if err != nil || !p.Overlaps(q.Range.CIDR) {
			continue // broken, or apart
		}
		same, err := c.sameNetwork(ctx, q, o, &nodes)
		if err != nil {
			return nil, nil, err
		}
		if !same {
			continue
		}
		taken, err := o.Taken()
		if err != nil {
			return nil, nil, &ObjectError{err}
		}
		x := overlap{name: o.Name, taken: taken, q: *q}
		x.q.Range.CIDR = p
		others = append(others, x)
	}
	if object != nil {
		c.remember(q, object, own)
		m := c.recall(q.Pool)
		m.Alone = time.Time{}
		if len(others) == 0 {
			m.Alone = began
		}
		c.keepMind(q.Pool, &m)
	}
	return own, others, nil
}

// sameNetwork reports whether a pool is of the network of the request: one of a range, or of the slice that a node has of a
// range. nodes are asked for once, and only if there is a name that may be a slice's.
func (c *Claimer) sameNetwork(ctx context.Context, q *Request, o *pool.Object, nodes *map[string]bool) (bool, error) {
	if o.Name == pool.Name(q.Network, "", o.Range) {
		return true, nil
	}
	node, ok := pool.SliceNode(q.Network, o.Name, o.Range)
	if !ok {
		return false, nil
	}
	if *nodes == nil {
		var err error
		if *nodes, err = c.Store.SliceNodes(ctx); err != nil {
			return false, err
		}
	}
	return (*nodes)[node], nil
}

// notMine returns what others have in the pools that overlap, by the offsets of the request's pool.
func (c *Claimer) notMine(q *Request, others []overlap) map[uint64]pool.Entry {
	out := map[uint64]pool.Entry{}
	for _, o := range others {
		for off, e := range o.taken {
			a, _ := pool.Addr(o.q.Range.CIDR, off)
			if here, ok := pool.Offset(q.Range.CIDR, a); ok && !c.ownMirror(e) {
				out[here] = e
			}
		}
	}
	return out
}

// mirror enters the node's claims into the other pools. It returns the addresses that others have there.
func (c *Claimer) mirror(ctx context.Context, q *Request, own map[uint64]pool.Entry, others []overlap) (map[uint64]pool.Entry, error) {
	if len(others) == 0 {
		return nil, nil
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	s := f.State
	f.Close()
	lost := map[uint64]pool.Entry{}
	for _, o := range others {
		change := pool.Change{Add: map[uint64]pool.Entry{}, Replace: map[uint64][2]pool.Entry{}}
		for _, claim := range slices.Concat(s.Claims, s.Trying) {
			want := pool.Entry{ID: mirrorOf(claim)}
			for _, off := range claim.Offsets() {
				a, _ := pool.Addr(q.Range.CIDR, off)
				there, ok := pool.Offset(o.q.Range.CIDR, a)
				if !ok || own[off].ID != claim.ID {
					continue
				}
				switch e, taken := o.taken[there]; {
				case !taken:
					change.Add[there] = want
				case e != want && (c.ownMirror(e) || mirrors(e, claim.Hold)):
					change.Replace[there] = [2]pool.Entry{e, want}
				case e != want:
					lost[off] = e
				}
			}
		}
		if !change.Empty() {
			if _, err := c.change(ctx, o.name, change); err != nil {
				return nil, err
			}
		}
	}
	return lost, nil
}

// mirrorOf returns the ID of the entries that stand for a claim in other pools.
func mirrorOf(claim blocks.Claim) string {
	if claim.Hold != "" {
		h, _ := pool.ParseHold(claim.ID)
		return h.Mirror().String()
	}
	return claim.ID + mirrorMark
}

// mirrors reports whether the entry stands for what is kept for an owner in another pool.
func mirrors(e pool.Entry, owner string) bool {
	h, ok := pool.ParseHold(e.ID)
	return ok && h.IsMirror() && h.Owner == owner
}

// ownMirror reports whether this machine made the entry for a claim in another pool, in this boot or an earlier one.
func (c *Claimer) ownMirror(e pool.Entry) bool {
	n, ok := pool.ParseNodeID(e.ID)
	return ok && isMirror(n) && n.Machine == c.Node.Machine
}

// settle makes the claims usable that the store has, but the lost ones.
func (c *Claimer) settle(ctx context.Context, q *Request, own map[uint64]pool.Entry, others []overlap, lost map[uint64]pool.Entry) error {
	var mirrors []string
	for _, o := range others {
		mirrors = append(mirrors, o.name)
	}
	err := c.update(ctx, q, func(s *blocks.State) error {
		if own != nil {
			c.dropLost(s, own)
		}
		if removed := s.Confirm(own, mirrors); removed > 0 {
			c.Log.Warn("entries of this node were removed from the pool", log.String("pool", q.Pool), log.Int("addresses", removed))
		}
		var drop []uint64
		for off, e := range lost {
			if u, used := s.Used[off]; used {
				a, _ := pool.Addr(q.Range.CIDR, off)
				c.Log.Error("an address of this node is taken in an overlapping pool too", log.Stringer(log.KeyAddress, a),
					log.String(log.KeyContainerID, u.ContainerID), log.String("by", e.Holder()))
				continue
			}
			drop = append(drop, off)
		}
		s.GiveBack(drop)
		return nil
	})
	if err != nil {
		return err
	}
	return c.give(ctx, q)
}

// sweep removes mirrors of this node whose claim is gone: the request that entered them came late. The list is read
// before the files, and a claim stands in its file before its mirrors are asked for.
func (c *Claimer) sweep(ctx context.Context, q *Request, node string) error {
	if m := c.recall(q.Pool); !q.Overlapping || c.alone(q, m.UID) {
		return nil
	}
	began := c.now()
	list, err := c.Store.List(ctx)
	if err != nil {
		return err
	}
	if _, _, err := c.overlaps(ctx, q, list, began); err != nil { // the next claim needs to know
		return err
	}
	names, err := blocks.Pools(c.Dir, c.Store.Place())
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, name := range names {
		f, err := blocks.Open(ctx, c.Dir, c.Store.Place(), name)
		if err != nil {
			return err
		}
		for _, claim := range slices.Concat(f.Claims, f.Trying, f.Giving) {
			known[mirrorOf(claim)] = true
		}
		f.Close()
	}
	for _, o := range list {
		change := pool.Change{Remove: map[uint64]pool.Entry{}}
		for key, e := range o.Allocations {
			n, _ := pool.ParseNodeID(e.ID)
			if off, err := pool.ParseKey(key); err == nil && n.Node == node && c.ownMirror(e) && !known[e.ID] {
				change.Remove[off] = e
			}
		}
		if change.Empty() {
			continue
		}
		if _, err := c.change(ctx, o.Name, change); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return nil
}
