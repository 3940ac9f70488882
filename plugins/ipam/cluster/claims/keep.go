// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
)

const (
	// keepFirst is how soon after its last ADD or DEL a node that has unused addresses reads the
	// pool to see whether they are scarce by now. The pause doubles up to keepShort in a pool that
	// is more than half taken, and to keepLong in others.
	keepFirst = idle
	keepShort = 20 * time.Second
	keepLong  = 2 * time.Minute
)

// Keep stays while the node has unused addresses of a pool, and gives them back once they are
// scarce: a node without an ADD would not notice otherwise. It also carries out what the store
// could not do before. One caller of a node does it; another returns at once.
func (c *Claimer) Keep(ctx context.Context, q *Request) error {
	only := file.TryLock(c.path(q.Pool, "keep"))
	if only == nil {
		return nil
	}
	defer only.Close()
	o := c.operation(q)
	s := &o.file.state
	pause, longest, touched := keepFirst, keepShort, int64(0)
	for {
		needed, err := o.toKeep(ctx)
		if err != nil || !needed {
			return err
		}
		if s.Touched != touched {
			pause, touched = keepFirst, s.Touched
		}
		current, pending := s.Current(c.Node), s.Pending(c.now().Unix())
		if pending {
			longest = keepShort
		}
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
		if err := o.file.load(ctx); err == nil && s.Touched != touched { // the node's own next claim reads the pool
			continue
		}
		pause = min(2*pause, longest)
		if longest, err = c.keepOnce(ctx, o, current, pending, longest); err != nil {
			c.Log.Debug("what waits for the store", log.Error(err))
		}
	}
}

// keepOnce does what waits for the store, and gives unused addresses back if they are scarce. It
// returns how long pauses may become.
func (c *Claimer) keepOnce(ctx context.Context, o *operation, current, pending bool, longest time.Duration) (time.Duration, error) {
	if c.Reopen != nil {
		store, err := c.Reopen()
		if err != nil {
			return longest, err
		}
		c.Store = store
	}
	var uerr error
	if pending {
		uerr = c.Upkeep(ctx, o.q)
	}
	if !current {
		return longest, uerr
	}
	_, taken, err := o.pools.read(ctx)
	if err != nil {
		return longest, errors.Join(uerr, err)
	}
	if longest = keepLong; 2*uint64(len(taken)) > o.q.Range.Size() {
		longest = keepShort
	}
	if o.isScarce(taken) {
		if err = o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Scarce = true }); err == nil {
			err = c.Upkeep(ctx, o.q)
		}
	}
	return longest, errors.Join(uerr, err)
}

// ToKeep reports whether Keep has something to stay for.
func (c *Claimer) ToKeep(ctx context.Context, q *Request) (bool, error) {
	return c.operation(q).toKeep(ctx)
}

func (o *operation) toKeep(ctx context.Context) (bool, error) {
	err := o.file.load(ctx)
	s := &o.file.state
	return len(s.Owed) > 0 || s.Current(o.c.Node) && (len(s.Unused()) > 0 || s.Pending(o.c.now().Unix())), err
}
