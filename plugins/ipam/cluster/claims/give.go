// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/filelock"
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
	f.Giving = append(f.Giving, f.Remove(back)...)
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
	return c.jot(ctx, q, func(s *blocks.State) { s.Giving = nil })
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

// Forget removes what whereabouts allocated for an attachment. If the store does not answer, the release is noted, and
// upkeep does it later.
func (c *Claimer) Forget(ctx context.Context, q *Request, owed blocks.Owed) error {
	err := c.forget(ctx, q, owed)
	if !errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
		return err
	}
	return c.jot(context.WithoutCancel(ctx), q, func(s *blocks.State) {
		if !slices.Contains(s.Owed, owed) {
			s.Owed = append(s.Owed, owed)
		}
	})
}

func (c *Claimer) forget(ctx context.Context, q *Request, owed blocks.Owed) error {
	for n := 0; n < tries; n++ {
		o, err := c.Store.Get(ctx, q.Pool)
		if err != nil || o == nil {
			return err
		}
		taken, err := checked(o, q.Range.CIDR)
		if err != nil {
			return err
		}
		change := pool.Change{Remove: map[uint64]pool.Entry{}}
		for off, e := range taken {
			if e.ID == owed.ContainerID && (e.IfName == owed.IfName || e.IfName == "") {
				change.Remove[off] = e
			}
		}
		if change.Empty() {
			return nil
		}
		_, err = c.change(ctx, q.Pool, change)
		if err == nil {
			return c.unreserve(ctx, q, change.Remove)
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
	return fmt.Errorf("release in pool %s: %w", q.Pool, ErrConflict)
}

// unreserve removes whereabouts' reservations, which it makes behind the allocation and removes behind it.
func (c *Claimer) unreserve(ctx context.Context, q *Request, removed map[uint64]pool.Entry) error {
	var errs []error
	for off, e := range removed {
		a, _ := pool.Addr(q.Range.CIDR, off)
		errs = append(errs, c.Store.Unreserve(ctx, pool.ReservationName(q.Network, a), e.PodRef))
	}
	return errors.Join(errs...)
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
func (c *Claimer) workAlone(ctx context.Context, q *Request, work string) *os.File {
	return tryLock(ctx, c.workPath(q, work))
}

func tryLock(ctx context.Context, path string) *os.File {
	now, cancel := context.WithCancel(ctx)
	cancel()
	lock, err := filelock.Acquire(now, path)
	if err != nil {
		return nil
	}
	return lock
}

// Kept reports whether a process stays for a pool: see Keep.
func Kept(dir, place, poolName string) bool {
	lock := tryLock(context.Background(), filepath.Join(dir, place, poolName+".keep"))
	if lock == nil {
		return true
	}
	_ = lock.Close()
	return false
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
		return errors.Join(err, c.jot(context.WithoutCancel(ctx), q, func(s *blocks.State) {
			s.Fails++
			s.After = c.now().Add(min(upkeepPause, time.Second<<min(s.Fails, 10))).Unix()
		}))
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
	if only := c.workAlone(ctx, q, "upkeep"); only != nil {
		return only, nil
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	idle := f.Idle()
	f.Close()
	if !idle {
		return nil, nil //nolint:nilnil // nothing to do is an answer
	}
	return filelock.Acquire(ctx, c.workPath(q, "upkeep"))
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
	for _, owed := range s.Owed {
		if err := c.forget(ctx, q, owed); err != nil {
			return err
		}
		err := c.jot(ctx, q, func(s *blocks.State) {
			s.Owed = slices.DeleteFunc(s.Owed, func(o blocks.Owed) bool { return o == owed })
		})
		if err != nil {
			return err
		}
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

const (
	// keepFirst is how soon after its last ADD or DEL a node that has unused addresses looks whether they are scarce by now.
	// The pause doubles up to keepShort in a pool that is more than half taken, and to keepLong in others.
	keepFirst = idle
	keepShort = 20 * time.Second
	keepLong  = 2 * time.Minute
)

// Keep stays while the node has unused addresses, and gives them back once they are scarce: a node without an ADD would
// not notice otherwise. It also carries out what the store could not be told. One process of a node does it; another
// returns at once.
func (c *Claimer) Keep(ctx context.Context, q *Request) error {
	only := c.workAlone(ctx, q, "keep")
	if only == nil {
		return nil
	}
	defer only.Close()
	pause, longest, touched := keepFirst, keepShort, int64(0)
	for {
		f, err := c.open(ctx, q)
		if err != nil {
			return err
		}
		pending := f.Pending(c.now().Unix())
		done := !f.Current(c.Node) || len(f.Unused()) == 0 && !pending
		if f.Touched != touched {
			pause, touched = keepFirst, f.Touched
		}
		f.Close()
		if done {
			return nil
		}
		if pending {
			longest = keepShort
		}
		if err := c.sleep(ctx, pause); err != nil {
			return err
		}
		if c.busy(ctx, q, touched) {
			continue
		}
		pause = min(2*pause, longest)
		if pending {
			if err := c.Upkeep(ctx, q); err != nil {
				c.Log.Debug("what waits for the store", log.Error(err))
			}
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
