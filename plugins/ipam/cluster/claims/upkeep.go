// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
)

const (
	// idle is how long a node without an ADD or DEL keeps what it does not use while addresses are
	// scarce.
	idle = 2 * time.Second
	// upkeepPause bounds the pause after upkeep that failed.
	upkeepPause = 5 * time.Minute
)

// Upkeep does what no call waits for: it claims ahead of need, gives back what is too much, and
// carries out releases that wait for the store. One process of a node does it at a time. Another
// returns at once, unless an address of an owner is released: the first may have read the file
// before that, and the pod's successor waits for it.
func (c *Claimer) Upkeep(ctx context.Context, q *Request) error {
	only, err := c.lockUpkeep(ctx, q)
	if only == nil || err != nil {
		return err
	}
	defer only.Close()
	// Before all other work, because the successor of a pod waits on another node.
	if err := c.locked(ctx, q, (*operation).releaseHeld); err != nil {
		c.Log.Debug("release kept addresses", log.Error(err)) // upkeep does it again, and counts the failure
	}
	if err := c.waitIdle(ctx, q); err != nil {
		return err
	}
	return c.locked(ctx, q, func(o *operation, ctx context.Context) error {
		err := o.upkeep(ctx)
		if err != nil && !errors.As(err, new(*FullError)) {
			return errors.Join(err, o.file.update(context.WithoutCancel(ctx), stateOnly, c.countFailure))
		}
		return o.file.update(ctx, stateOnly, func(s *blocks.State) {
			if s.Fails > 0 {
				s.Fails, s.After = 0, 0
			}
		})
	})
}

// countFailure notes that the store did not do what it was asked for.
func (c *Claimer) countFailure(s *blocks.State) {
	s.Fails++
	s.After = c.now().Add(min(upkeepPause, time.Second<<min(s.Fails, 10))).Unix()
}

// lockUpkeep takes the lock of upkeep, or returns nil if another process does all there is to do.
func (c *Claimer) lockUpkeep(ctx context.Context, q *Request) (*os.File, error) {
	path := c.path(q.Pool, "upkeep")
	if only := file.TryLock(path); only != nil {
		return only, nil
	}
	o := c.operation(q)
	if err := o.file.load(ctx); err != nil || !o.file.state.Idle() {
		return nil, err // nothing to do is an answer
	}
	return file.AcquireLock(ctx, path)
}

// waitIdle waits, while addresses are scarce, until the node had no ADD or DEL for a while.
func (c *Claimer) waitIdle(ctx context.Context, q *Request) error {
	o := c.operation(q)
	for {
		if err := o.file.load(ctx); err != nil {
			return err
		}
		s := &o.file.state
		left := min(idle, idle-c.now().Sub(time.UnixMilli(s.Touched))) // also after the clock was set back
		if !s.Scarce || left <= 0 {
			return nil
		}
		if err := c.sleep(ctx, left+10*time.Millisecond); err != nil {
			return err
		}
	}
}

func (o *operation) upkeep(ctx context.Context) error {
	if err := (&exchange{o}).forget(ctx); err != nil {
		return err
	}
	s := &o.file.state
	if !s.Current(o.c.Node) {
		return nil
	}
	if err := o.releaseHeld(ctx); err != nil {
		return err
	}
	if err := o.removeLateMirrors(ctx, s.Node); err != nil {
		return err
	}
	switch {
	case s.Unanswered(o.c.now().Unix()):
		if err := o.catchUp(ctx); err != nil {
			return err
		}
	case len(s.Giving) > 0:
		if err := o.give(ctx); err != nil {
			return err
		}
	}
	if err := o.file.load(ctx); err != nil { // ADDs went on during that
		return err
	}
	switch {
	case s.Scarce:
		return o.releaseScarce(ctx)
	case s.ClaimAhead(&o.q.Range, o.q.BlockSize):
		return o.c.retry(ctx, func() error { return o.claim(ctx, true) })
	case blocks.High(len(s.Unused()), o.q.BlockSize):
		return o.release(ctx, allBut(o.q.BlockSize))
	}
	return nil
}

// releaseScarce gives back all that the node does not use, if addresses are still scarce.
func (o *operation) releaseScarce(ctx context.Context) error {
	_, taken, err := o.pools.read(ctx)
	if err != nil {
		return err
	}
	if !o.isScarce(taken) {
		return o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Scarce = false })
	}
	o.c.Log.Debug("addresses are scarce: what is not used goes back", log.String("pool", o.q.Pool))
	return o.release(ctx, allBut(0))
}
