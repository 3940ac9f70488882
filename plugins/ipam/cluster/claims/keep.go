// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	// keepFirst is how soon after its last ADD or DEL a node that has unused addresses looks whether they are scarce by now.
	// The pause doubles up to keepShort in a pool that is more than half taken, and to keepLong in others.
	keepFirst = idle
	keepShort = 20 * time.Second
	keepLong  = 2 * time.Minute
)

// Keep stays while the node has unused addresses of a pool, and gives them back once they are scarce: a node without an ADD would
// not notice otherwise. It also carries out what the store could not be told. One caller of a node does it; another returns at once.
func (c *Claimer) Keep(ctx context.Context, q *Request) error {
	only := c.workAlone(q, "keep")
	if only == nil {
		return nil
	}
	defer only.Close()
	pause, longest, touched := keepFirst, keepShort, int64(0)
	for {
		k, err := c.keptState(ctx, q)
		if err != nil || !k.any() {
			return err
		}
		if k.touched != touched {
			pause, touched = keepFirst, k.touched
		}
		if k.pending {
			longest = keepShort
		}
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
		if c.busy(ctx, q, touched) {
			continue
		}
		pause = min(2*pause, longest)
		if c.Reopen != nil {
			s, err := c.Reopen()
			if err != nil {
				c.Log.Debug("open the store of a pool", log.Error(err))
				continue
			}
			c.Store = s
		}
		if k.pending {
			if err := c.Upkeep(ctx, q); err != nil {
				c.Log.Debug("what waits for the store", log.Error(err))
			}
		}
		if !k.current {
			continue
		}
		_, taken, err := c.read(ctx, q)
		if err != nil {
			c.Log.Debug("look at a pool", log.Error(err))
			continue
		}
		if longest = keepLong; 2*uint64(len(taken)) > q.Range.Size() {
			longest = keepShort
		}
		if c.isScarce(q, taken) {
			if err := c.note(ctx, q, true); err != nil {
				return err
			}
			if err := c.Upkeep(ctx, q); err != nil {
				c.Log.Debug("give addresses back", log.Error(err))
			}
		}
	}
}

// busy reports whether the node had an ADD or DEL since that time: its own next claim looks at the pool.
func (c *Claimer) busy(ctx context.Context, q *Request, touched int64) bool {
	f, err := c.open(ctx, q)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Touched != touched
}

// keptState is what of a pool's file says whether somebody has to stay.
type keptState struct {
	current, unused, owed bool
	pending               bool // see blocks.State.Pending
	touched               int64
}

func (k keptState) any() bool { return k.owed || k.current && (k.unused || k.pending) }

func (c *Claimer) keptState(ctx context.Context, q *Request) (k keptState, err error) {
	f, err := c.open(ctx, q)
	if err != nil {
		return k, err
	}
	defer f.Close()
	return keptState{f.Current(c.Node), len(f.Unused()) > 0, len(f.Owed) > 0, f.Pending(c.now().Unix()), f.Touched}, nil
}

// ToKeep reports whether Keep has something to stay for.
func (c *Claimer) ToKeep(ctx context.Context, q *Request) (bool, error) {
	k, err := c.keptState(ctx, q)
	return k.any(), err
}
