// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// unknownMark begins the name of a node that the store does not know: nothing tells whether it is
// gone.
const unknownMark = "~"

// freeGone frees what nodes and owners have that are gone, in the pools that overlap, and in the
// pool at most every deadPause unless an address is asked for. It reports whether there was
// anything.
func (o *operation) freeGone(ctx context.Context, v *view) (bool, error) {
	if len(v.elsewhere) > 0 {
		some := false
		for _, other := range v.overlaps {
			freed, err := o.freeIn(ctx, other)
			if err != nil {
				return false, err
			}
			some = some || freed
		}
		if some {
			return true, nil
		}
	}
	this := overlap{o.q.Pool, o.q.Range.CIDR, v.own}
	if k := &o.pools.cache; o.q.Wanted.IsValid() {
		wanted, _ := pool.Offset(o.q.Range.CIDR, o.q.Wanted)
		this.taken = map[uint64]pool.Entry{wanted: v.own[wanted]}
	} else {
		if o.c.within(k.LookedForDead, deadPause) {
			return false, nil
		}
		k.LookedForDead = o.c.now()
		k.save()
	}
	return o.freeIn(ctx, this)
}

// freeIn frees what nodes have in a pool that are certainly gone, and what is kept for owners that
// are. Mirrored entries are freed as well: each by the node that needs it.
func (o *operation) freeIn(ctx context.Context, p overlap) (bool, error) {
	change := pool.Change{Remove: map[uint64]pool.Entry{}}
	x, err := o.c.verdicts(ctx, p)
	if err != nil {
		return false, err
	}
	for off, e := range p.taken {
		free, err := x.free(ctx, off, e)
		if err != nil {
			return false, err
		}
		if free {
			change.Remove[off] = e
		}
	}
	if change.Empty() {
		return false, nil
	}
	o.c.Log.Info("addresses of nodes and owners that are gone are free again", log.String("pool", p.name), log.Int("addresses", len(change.Remove)))
	_, err = o.pools.change(ctx, p.name, change)
	return true, err
}

// verdicts are what the store says of the nodes and owners of a pool, asked for once.
type verdicts struct {
	store Store
	pool  overlap
	dead  map[pool.NodeID]bool
	gone  map[string]bool
	list  []pool.Object
}

// verdicts asks for all nodes of the entries at once.
func (c *Claimer) verdicts(ctx context.Context, p overlap) (*verdicts, error) {
	ids := map[pool.NodeID]bool{}
	for _, e := range p.taken {
		if id, ok := bootOf(e); ok {
			ids[id] = true
		}
	}
	dead, err := c.dead(ctx, slices.Collect(maps.Keys(ids)))
	return &verdicts{store: c.Store, pool: p, dead: dead, gone: map[string]bool{}}, err
}

// free reports whether no pod has the entry any more: its node is gone, or its owner is, and no
// node has it for a pod.
func (x *verdicts) free(ctx context.Context, off uint64, e pool.Entry) (bool, error) {
	if id, ok := bootOf(e); ok && !x.dead[id] {
		return false, nil
	}
	if _, ok := pool.ParseNodeID(e.ID); ok {
		return true, nil
	}
	h, ok := pool.ParseHold(e.ID)
	if !ok {
		return false, nil
	}
	if h.IsMirror() { // it does not say whether a pod has the address still
		return x.stale(ctx, off, h)
	}
	gone, known := x.gone[h.Owner]
	if !known {
		var err error
		if gone, err = x.store.Gone(ctx, h); err != nil {
			return false, err
		}
		x.gone[h.Owner] = gone
	}
	return gone, nil
}

// stale reports whether a mirror is of a hold that is not there: the request that entered it came
// late.
func (x *verdicts) stale(ctx context.Context, off uint64, h pool.Hold) (bool, error) {
	if x.list == nil {
		var err error
		if x.list, err = x.store.List(ctx); err != nil {
			return false, err
		}
	}
	for i := range x.list {
		cidr, err := x.list[i].Prefix()
		if err != nil {
			continue
		}
		there, ok := translate(x.pool.cidr, off, cidr)
		if !ok {
			continue
		}
		if held, ok := pool.ParseHold(x.list[i].Allocations[pool.Key(there)].ID); ok && held.Owner == h.Owner && !held.IsMirror() {
			return false, nil
		}
	}
	return true, nil
}

// bootOf returns the boot that has an entry for its pods, if one has.
func bootOf(e pool.Entry) (pool.NodeID, bool) {
	if id, ok := pool.ParseNodeID(e.ID); ok {
		id.Nonce = ""
		return id, true
	}
	h, _ := pool.ParseHold(e.ID)
	return h.Node, h.Taken()
}

// dead returns those of the boots that are certainly over.
func (c *Claimer) dead(ctx context.Context, ids []pool.NodeID) (map[pool.NodeID]bool, error) {
	ids = slices.DeleteFunc(ids, func(id pool.NodeID) bool {
		return id.Machine == c.Node.Machine && id.Boot == c.Node.Boot || strings.HasPrefix(id.Node, unknownMark)
	})
	if len(ids) == 0 {
		return nil, nil // none is an answer
	}
	return c.Store.Dead(ctx, ids)
}

// IsDead reports whether the boot of a claim is certainly over.
func (c *Claimer) IsDead(ctx context.Context, id pool.NodeID) (bool, error) {
	dead, err := c.dead(ctx, []pool.NodeID{id})
	return dead[id], err
}

// IsFree reports whether no pod has an entry any more that is kept for an owner: see Store.Gone.
func (c *Claimer) IsFree(ctx context.Context, e pool.Entry) (bool, error) {
	if h, ok := pool.ParseHold(e.ID); !ok || h.IsMirror() {
		return false, nil
	}
	x, err := c.verdicts(ctx, overlap{taken: map[uint64]pool.Entry{0: e}})
	if err != nil {
		return false, err
	}
	return x.free(ctx, 0, e)
}
