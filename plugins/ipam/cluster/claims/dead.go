// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// freeDead frees what nodes have that are certainly gone, and what is kept for owners that are. Mirrored entries are freed
// as well: each by the node that needs it.
func (c *Claimer) freeDead(ctx context.Context, q *Request, taken map[uint64]pool.Entry, one bool) (bool, error) {
	x := verdicts{c: c, gone: map[string]bool{}}
	change := pool.Change{Remove: map[uint64]pool.Entry{}}
	wanted, _ := pool.Offset(q.Range.CIDR, q.Wanted)
	if one {
		taken = map[uint64]pool.Entry{wanted: taken[wanted]}
	}
	if err := x.ask(ctx, taken); err != nil {
		return false, err
	}
	for off, e := range taken {
		free, err := x.free(ctx, q, off, e)
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
	c.Log.Info("addresses of nodes and owners that are gone are free again", log.String("pool", q.Pool), log.Int("addresses", len(change.Remove)))
	_, err := c.change(ctx, q.Pool, change)
	return true, err
}

// freeElsewhere frees what nodes and owners that are gone have in the pools that overlap.
func (c *Claimer) freeElsewhere(ctx context.Context) (bool, error) {
	some := false
	for _, o := range c.others {
		q := o.q
		q.Pool = o.name
		freed, err := c.freeDead(ctx, &q, o.taken, false)
		if err != nil {
			return false, err
		}
		some = some || freed
	}
	c.others, c.elsewhere = nil, nil // the next claim looks again
	return some, nil
}

// unknownMark begins the name of a node that the store does not know: nothing tells whether it is gone.
const unknownMark = "~"

// dead returns those of the boots that are certainly over.
func (c *Claimer) dead(ctx context.Context, ids []pool.NodeID) (map[pool.NodeID]bool, error) {
	ask := slices.DeleteFunc(slices.Clone(ids), func(id pool.NodeID) bool {
		return id.Machine == c.Node.Machine && id.Boot == c.Node.Boot || strings.HasPrefix(id.Node, unknownMark)
	})
	if len(ask) == 0 {
		return nil, nil // none is an answer
	}
	return c.Store.Dead(ctx, ask)
}

// isDead reports whether a boot is certainly over.
func (c *Claimer) isDead(ctx context.Context, id pool.NodeID) (bool, error) {
	dead, err := c.dead(ctx, []pool.NodeID{id})
	return dead[id], err
}
