// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Release gives unused addresses back, all but keep of them.
func (c *Claimer) Release(ctx context.Context, q *Request, keep int) error {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(c.rest(ctx, q), c.release(ctx, q, keep))
}

func (c *Claimer) release(ctx context.Context, q *Request, keep int) error {
	return c.releaseSome(ctx, q, func(unused []uint64) []uint64 { return unused[min(keep, len(unused)):] })
}

// releaseSome gives chosen ones of the unused addresses back.
func (c *Claimer) releaseSome(ctx context.Context, q *Request, choose func(unused []uint64) []uint64) error {
	f, err := c.openAll(ctx, q)
	if err != nil {
		return err
	}
	back := choose(f.Unused())
	if !f.Current(c.Node) || len(back) == 0 {
		f.Close()
		return nil
	}
	f.GiveBack(back)
	err = f.SaveDurably() // before the store hears of it
	f.Close()
	if err != nil {
		return err
	}
	return c.give(ctx, q)
}

// give removes from the store what stands under Giving. What does not get done stays there for the next time.
func (c *Claimer) give(ctx context.Context, q *Request) error {
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	giving := f.Giving
	f.Close()
	if len(giving) == 0 {
		return nil
	}
	for n := 0; ; n++ {
		err := c.giveOnce(ctx, q, giving)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrConflict) || n >= tries {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
	return c.jot(ctx, q, func(s *blocks.State) { s.Forget(giving) })
}

func (c *Claimer) giveOnce(ctx context.Context, q *Request, giving []blocks.Claim) error {
	if done, err := c.giveUnseen(ctx, q, giving); done || err != nil {
		return err
	}
	own, others, err := c.look(ctx, q)
	if err != nil {
		return err
	}
	for _, o := range append(others, overlap{name: q.Pool, taken: own, q: *q}) {
		change := pool.Change{Remove: map[uint64]pool.Entry{}}
		for _, claim := range giving {
			e := pool.Entry{ID: claim.ID}
			if o.name != q.Pool {
				e.ID = mirrorOf(claim)
			}
			for _, off := range claim.Offsets() {
				a, _ := pool.Addr(q.Range.CIDR, off)
				if there, ok := pool.Offset(o.q.Range.CIDR, a); ok && o.taken[there] == e {
					change.Remove[there] = e
				}
			}
		}
		if !change.Empty() {
			if _, err := c.change(ctx, o.name, change); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveUnseen removes from the store what it should have, without a look before. It reports false if the store has something else,
// or a pool overlaps.
func (c *Claimer) giveUnseen(ctx context.Context, q *Request, giving []blocks.Claim) (bool, error) {
	if m := c.recall(q.Pool); m.UID == "" || !c.alone(q, m.UID) {
		return false, nil
	}
	change := pool.Change{Remove: map[uint64]pool.Entry{}}
	for _, claim := range giving {
		for _, off := range claim.Offsets() {
			change.Remove[off] = pool.Entry{ID: claim.ID}
		}
	}
	o, err := c.change(ctx, q.Pool, change)
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	if err == nil && o != nil {
		if taken, terr := o.Taken(); terr == nil {
			c.remember(q, o, taken)
		}
	}
	return true, err
}

// Of returns the addresses that the pool has for an attachment of whereabouts.
func (c *Claimer) Of(ctx context.Context, q *Request, containerID, ifName string) ([]uint64, error) {
	o, err := c.Store.Get(ctx, q.Pool)
	if err != nil || o == nil {
		return nil, err
	}
	taken, err := checked(o, q.Range.CIDR)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for off, e := range taken {
		if e.ID == containerID && (e.IfName == ifName || e.IfName == "") {
			out = append(out, off)
		}
	}
	return out, nil
}

const (
	// idle is how long a node without an ADD or DEL keeps what it does not use while addresses are scarce.
	idle = 2 * time.Second
	// upkeepPause bounds the pause after upkeep that failed.
	upkeepPause = 5 * time.Minute
)

// workAlone takes the lock of one kind of background work, which the caller closes. It returns nil if another process does that work.
func (c *Claimer) workAlone(q *Request, work string) *os.File {
	return file.TryLock(c.workPath(q, work))
}

// Upkeep does what no call waits for: it claims ahead of need, gives back what is too much, and carries out releases
// that wait for the store. One process of a node does it at a time. Another returns at once, unless an address rests: the
// first may have looked before that, and the pod's successor waits for it.
func (c *Claimer) Upkeep(ctx context.Context, q *Request) error {
	only, err := c.forUpkeep(ctx, q)
	if only == nil || err != nil {
		return err
	}
	defer only.Close()
	if err := c.restFirst(ctx, q); err != nil {
		c.Log.Debug("let addresses rest", log.Error(err)) // upkeep does it again, and counts the failure
	}
	if err := c.awaitIdle(ctx, q); err != nil {
		return err
	}
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return err
	}
	defer unlock()
	err = c.upkeep(ctx, q)
	if err != nil && !errors.As(err, new(*FullError)) {
		return errors.Join(err, c.jot(context.WithoutCancel(ctx), q, c.failed))
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Fails == 0 {
		return nil
	}
	f.Fails, f.After = 0, 0
	return f.Save()
}

// failed notes that the store did not do what it was asked for.
func (c *Claimer) failed(s *blocks.State) {
	s.Fails++
	s.After = c.now().Add(min(upkeepPause, time.Second<<min(s.Fails, 10))).Unix()
}

// restFirst lets addresses rest before all other work: the successor of a pod waits on another node.
func (c *Claimer) restFirst(ctx context.Context, q *Request) error {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return err
	}
	defer unlock()
	return c.rest(ctx, q)
}

// forUpkeep takes the lock of upkeep, or returns nil if another process does all there is to do.
func (c *Claimer) forUpkeep(ctx context.Context, q *Request) (*os.File, error) {
	if only := c.workAlone(q, "upkeep"); only != nil {
		return only, nil
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	idle := f.Idle()
	f.Close()
	if !idle {
		return nil, nil // nothing to do is an answer
	}
	return file.AcquireLock(ctx, c.workPath(q, "upkeep"))
}

func (c *Claimer) workPath(q *Request, work string) string {
	return filepath.Join(c.Dir, c.Store.Place(), q.Pool+"."+work)
}

func (c *Claimer) upkeep(ctx context.Context, q *Request) error {
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	s := f.State
	f.Close()
	if err := c.forget(ctx, q); err != nil {
		return err
	}
	if !s.Current(c.Node) {
		return nil
	}
	if err := c.rest(ctx, q); err != nil {
		return err
	}
	if err := c.sweep(ctx, q, s.Node); err != nil {
		return err
	}
	if s, err = c.settleOpen(ctx, q, s); err != nil {
		return err
	}
	if s.Scarce {
		return c.upkeepScarce(ctx, q)
	}
	spare := len(s.Spare(&q.Range))
	switch {
	case blocks.Low(spare, q.BlockSize):
		for n := 0; ; n++ {
			err := c.claim(ctx, q, true)
			if !errors.Is(err, ErrConflict) || n >= tries {
				return err
			}
			if err := c.pause(ctx, n); err != nil {
				return err
			}
		}
	case blocks.High(len(s.Unused()), q.BlockSize):
		return c.release(ctx, q, q.BlockSize)
	}
	return nil
}

// settleOpen ends the requests that have had no answer, and returns the file as it is then.
func (c *Claimer) settleOpen(ctx context.Context, q *Request, s blocks.State) (blocks.State, error) {
	var err error
	switch {
	case s.Unanswered(c.now().Unix()):
		err = c.catchUp(ctx, q)
	case len(s.Giving) > 0:
		err = c.give(ctx, q)
	default:
		return s, nil
	}
	if err != nil {
		return s, err
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return s, err
	}
	defer f.Close()
	return f.State, nil
}

// awaitIdle waits, while addresses are scarce, until the node had no ADD or DEL for a while.
func (c *Claimer) awaitIdle(ctx context.Context, q *Request) error {
	for {
		f, err := c.open(ctx, q)
		if err != nil {
			return err
		}
		scarce, touched := f.Scarce, time.UnixMilli(f.Touched)
		f.Close()
		left := min(idle, idle-c.now().Sub(touched)) // also after the clock was set back
		if !scarce || left <= 0 {
			return nil
		}
		if err := c.sleep(ctx, left+10*time.Millisecond); err != nil {
			return err
		}
	}
}

// isScarce reports whether a claim gets less than half a block.
func (c *Claimer) isScarce(q *Request, taken map[uint64]pool.Entry) bool {
	any := &Request{Pool: q.Pool, Range: q.Range, BlockSize: q.BlockSize}
	_, scarce, err := c.choose(any, newView(any, taken, nil), c.Node.Name)
	return scarce || err != nil
}

// upkeepScarce gives back all that the node does not use, if addresses are still scarce.
func (c *Claimer) upkeepScarce(ctx context.Context, q *Request) error {
	_, taken, err := c.read(ctx, q)
	if err != nil {
		return err
	}
	if !c.isScarce(q, taken) {
		return c.note(ctx, q, false)
	}
	c.Log.Debug("addresses are scarce: what is not used goes back", log.String("pool", q.Pool))
	return c.release(ctx, q, 0)
}
