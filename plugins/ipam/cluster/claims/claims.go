// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Claimer does what a node wants of the store. One process has one; processes of a node exclude each other by a lock.
type Claimer struct {
	Store Store
	Node  blocks.Node
	Dir   string // of the node's files
	Log   *log.Logger
	// Reopen returns the store anew, for what stays longer than credentials are valid; nil: they do not end.
	Reopen func() (Store, error)

	// FullWait is how long a full pool is waited for: other nodes give back what they do not use.
	FullWait time.Duration
	// Patience is how long a store that does not answer is asked again.
	Patience time.Duration
	// Sleep waits; nil: a timer. Rand is in [0,1); nil: the process's.
	Sleep func(ctx context.Context, d time.Duration) error
	Rand  func() float64
	Now   func() time.Time

	// wait takes a lock of a test whose time is simulated; nil: that of the file.
	wait func() (unlock func())
	// others are the pools that overlapped at the last look, and elsewhere what others have there, and what is reserved for them: offsets of
	// the pool.
	others    []overlap
	elsewhere map[uint64]pool.Entry
}

// Request is about one range of a configuration.
type Request struct {
	Pool        string     `json:"pool"`
	Network     string     `json:"network,omitempty"` // network_name
	Range       pool.Range `json:"range"`
	BlockSize   int        `json:"blockSize"`
	Overlapping bool       `json:"overlapping"`
	Wanted      netip.Addr `json:"wanted"` // the address that is asked for, or none
	// Hold is the owner that the address is kept for, or empty: see pool.HoldFor.
	Hold string `json:"hold,omitempty"`

	burst int // how many addresses to claim, if more than a block
}

const (
	firstPause = 30 * time.Millisecond
	longPause  = 2 * time.Second
	// tries bounds what a conflict repeats.
	tries = 40
	// fullPause is after how many repetitions the pause for a full pool grows no more: another node gives back at any time.
	fullPause = 4
)

// pause waits before the n-th repetition: exponentially longer, with jitter.
func (c *Claimer) pause(ctx context.Context, n int) error {
	d := min(longPause, firstPause<<min(n, 10))
	return c.sleep(ctx, d/2+time.Duration(c.random()*float64(d)))
}

func (c *Claimer) random() float64 {
	if c.Rand != nil {
		return c.Rand()
	}
	return rand.Float64()
}

func (c *Claimer) sleep(ctx context.Context, d time.Duration) error {
	if c.Sleep != nil {
		return c.Sleep(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Claimer) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// lock excludes other processes of the node that talk to the store about the pool. The file of the pool stays free
// while it is held, so ADD and DEL go on.
func (c *Claimer) lock(ctx context.Context, q *Request) (unlock func(), err error) {
	if c.wait != nil {
		return c.wait(), nil
	}
	f, err := file.AcquireLock(ctx, filepath.Join(c.Dir, c.Store.Place(), q.Pool+".claim"))
	if err != nil {
		return nil, fmt.Errorf("another call of this node waits for pool %s: %w: %w", q.Pool, ErrUnavailable, err)
	}
	return func() { _ = f.Close() }, nil
}

// open opens the file of the pool without the uses of its attachments.
func (c *Claimer) open(ctx context.Context, q *Request) (*blocks.File, error) {
	return blocks.OpenFor(ctx, c.Dir, c.Store.Place(), q.Pool, "", "")
}

// openAll opens the file of the pool with all uses. What changes claims or uses needs it.
func (c *Claimer) openAll(ctx context.Context, q *Request) (*blocks.File, error) {
	return blocks.Open(ctx, c.Dir, c.Store.Place(), q.Pool)
}

// jot changes the file of the pool, but neither claims nor uses.
func (c *Claimer) jot(ctx context.Context, q *Request, change func(s *blocks.State)) error {
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer f.Close()
	change(&f.State)
	return f.Save()
}

// update changes the file of the pool.
func (c *Claimer) update(ctx context.Context, q *Request, change func(s *blocks.State) error) error {
	f, err := c.openAll(ctx, q)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := change(&f.State); err != nil {
		return err
	}
	return f.Save()
}

// Ensure makes sure that the node has an unused address of the range, or the address that is wanted. The caller takes
// it from the node's file.
func (c *Claimer) Ensure(ctx context.Context, q *Request) error {
	unlock, err := c.lock(ctx, q)
	if err != nil {
		return err
	}
	defer unlock()
	begin := c.now()
	for n := 0; ; n++ {
		if done, err := c.have(ctx, q); done || err != nil {
			return err
		}
		err := c.claim(ctx, q, false)
		var isFull *FullError
		switch {
		case err == nil:
			continue
		case errors.As(err, new(*HeldError)): // its DEL may be on its way to the store
			if c.now().Sub(begin) >= c.Patience {
				return err
			}
		case errors.As(err, &isFull):
			if isFull.Wanted != "" || !isFull.Lent || c.now().Sub(begin) >= c.FullWait {
				return err
			}
		case errors.Is(err, ErrUnavailable):
			if c.now().Sub(begin) >= c.Patience {
				return err
			}
		case !errors.Is(err, ErrConflict) || n >= tries:
			return err
		}
		if isFull != nil {
			n = min(n, fullPause)
		}
		if c.pause(ctx, n) != nil {
			return err
		}
	}
}

// have reports whether the node has what is wanted.
func (c *Claimer) have(ctx context.Context, q *Request) (bool, error) {
	f, err := c.open(ctx, q)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if !f.Current(c.Node) {
		return false, nil
	}
	if q.Hold != "" {
		_, has := f.Held(q.Hold)
		return has, nil
	}
	if q.Wanted.IsValid() {
		off, _ := pool.Offset(q.Range.CIDR, q.Wanted)
		claim, owned := f.Owns(off)
		return owned && claim.Hold == "", nil
	}
	return len(f.Spare(&q.Range)) > 0, nil
}

// change changes a pool, and returns it as it is then.
func (c *Claimer) change(ctx context.Context, name string, change pool.Change) (*pool.Object, error) {
	if err := c.awaitTurn(ctx, name); err != nil {
		return nil, err
	}
	begin := c.now()
	o, err := c.Store.Change(ctx, name, change)
	c.noteTurn(name, c.now().Sub(begin))
	return o, err
}

// read returns the pool, which it makes if there is none, and its allocations.
func (c *Claimer) read(ctx context.Context, q *Request) (*pool.Object, map[uint64]pool.Entry, error) {
	o, err := c.Store.Get(ctx, q.Pool)
	if err == nil && o == nil {
		if err = c.Store.Create(ctx, q.Pool, q.Range.CIDR.String()); err == nil {
			o, err = c.Store.Get(ctx, q.Pool)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if o == nil {
		return nil, nil, fmt.Errorf("pool %s: %w: it was removed", q.Pool, ErrConflict)
	}
	taken, err := checked(o, q.Range.CIDR)
	return o, taken, err
}

// readAll is read, and looks at the pools that overlap too, unless the node knows that there are none, and at reservations.
func (c *Claimer) readAll(ctx context.Context, q *Request) (map[uint64]pool.Entry, error) {
	taken, err := c.readOverlapping(ctx, q)
	if err != nil || !q.Overlapping {
		return taken, err
	}
	reserved, err := c.reservedNow(ctx, q, taken)
	maps.Copy(c.elsewhere, reserved)
	return taken, err
}

func (c *Claimer) readOverlapping(ctx context.Context, q *Request) (map[uint64]pool.Entry, error) {
	c.others, c.elsewhere = nil, map[uint64]pool.Entry{}
	if !c.alone(q, c.recall(q.Pool).UID) {
		own, others, err := c.look(ctx, q)
		if err != nil {
			return nil, err
		}
		c.others, c.elsewhere = others, c.notMine(q, others)
		if own != nil {
			return own, nil
		}
		if err := c.Store.Create(ctx, q.Pool, q.Range.CIDR.String()); err != nil {
			return nil, err
		}
	}
	o, taken, err := c.read(ctx, q)
	if err == nil {
		c.remember(q, o, taken)
	}
	return taken, err
}

// checked returns the allocations of a pool of that range.
func checked(o *pool.Object, cidr netip.Prefix) (map[uint64]pool.Entry, error) {
	p, err := o.Prefix()
	if err == nil && p != cidr {
		err = fmt.Errorf("pool %s: range %s, the configuration has %s; correct the object", o.Name, p, cidr)
	}
	if err != nil {
		return nil, &ObjectError{err}
	}
	taken, err := o.Taken()
	if err != nil {
		return nil, &ObjectError{err}
	}
	return taken, nil
}

// claim claims a block, or the address that is wanted. ahead says that no ADD waits: it claims nothing while addresses
// are scarce.
func (c *Claimer) claim(ctx context.Context, q *Request, ahead bool) error {
	if done, err := c.claimUnseen(ctx, q, ahead); done || err != nil {
		return err
	}
	taken, err := c.readAll(ctx, q)
	if err != nil {
		return err
	}
	if taken, err = c.takeUp(ctx, q, taken); err != nil {
		return err
	}
	if done, err := c.have(ctx, q); err != nil || done && !ahead {
		return err
	}
	if q.Hold != "" {
		return c.claimHeld(ctx, q, taken)
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	s := f.State
	f.Close()
	offsets, scarce, err := c.pick(ctx, c.burst(q, &s), taken, s.Node)
	if errors.Is(err, ErrConflict) {
		return err
	}
	if err != nil || ahead && scarce {
		return errors.Join(err, c.note(ctx, q, scarce || err != nil))
	}
	return c.claimOffsets(ctx, q, offsets, scarce, "")
}

// claimOffsets claims addresses that seem to be free. in is the range that the object must have, or empty if it was seen.
func (c *Claimer) claimOffsets(ctx context.Context, q *Request, offsets []uint64, scarce bool, in string) error {
	claim := blocks.Claim{Runs: blocks.Runs(offsets)}
	err := c.jot(ctx, q, func(s *blocks.State) {
		claim.ID = c.newID(s.Node)
		s.Try(claim)
		s.Scarce, s.Claimed = scarce, c.now().Unix()
	})
	if err != nil {
		return err
	}
	add := map[uint64]pool.Entry{}
	for _, off := range offsets {
		add[off] = pool.Entry{ID: claim.ID}
	}
	return c.request(ctx, q, claim.ID, pool.Change{Add: add, Range: in})
}

const (
	// burstPause is how soon after another claim one counts as part of a burst: many pods start on the node.
	burstPause = 10
	// maxBurst is what one change of any store can have.
	maxBurst = 120
)

// burst returns the request for more than a block if the node has claimed one a moment ago: not more than it may keep unused.
func (c *Claimer) burst(q *Request, s *blocks.State) *Request {
	if q.BlockSize == 1 || q.Wanted.IsValid() || c.now().Unix()-s.Claimed > burstPause {
		return q
	}
	more := *q
	more.burst = min(maxBurst, blocks.MostUnused(q.BlockSize)-len(s.Unused()))
	return &more
}

// pick chooses offsets for the next claim. If there is none it frees what is kept for an owner that has gone, and says by ErrConflict that
// it did: the caller looks again.
func (c *Claimer) pick(ctx context.Context, q *Request, taken map[uint64]pool.Entry, self string) ([]uint64, bool, error) {
	offsets, scarce, err := c.choose(q, newView(q, taken, c.elsewhere), self)
	var full *FullError
	if !errors.As(err, &full) {
		return offsets, scarce, err
	}
	if len(c.elsewhere) > 0 {
		freed, derr := c.freeElsewhere(ctx)
		if derr != nil {
			return nil, false, derr
		}
		if freed {
			return nil, false, ErrConflict
		}
	}
	if full.Wanted == "" {
		m := c.recall(q.Pool)
		if c.within(m.LookedForDead, deadPause) {
			return nil, scarce, err
		}
		m.LookedForDead = c.now()
		c.keepMind(q.Pool, &m)
	}
	freed, derr := c.freeDead(ctx, q, taken, full.Wanted != "")
	if derr != nil {
		return nil, false, derr
	}
	if freed {
		return nil, false, ErrConflict
	}
	return nil, scarce, err
}

// request asks for what stands under Trying with that ID, and confirms it. What the store says of the pool is newer than what
// the node has seen of it, so the file is compared with it.
func (c *Claimer) request(ctx context.Context, q *Request, id string, change pool.Change) error {
	o, err := c.change(ctx, q.Pool, change)
	if errors.Is(err, ErrConflict) { // certainly not there
		return errors.Join(err, c.jot(ctx, q, func(s *blocks.State) { s.Refuse(id) }))
	}
	if err != nil {
		return err
	}
	if o == nil || !c.alone(q, o.UID) {
		return c.confirm(ctx, q)
	}
	taken, err := checked(o, q.Range.CIDR)
	if err != nil {
		return err
	}
	c.remember(q, o, taken)
	return c.settle(ctx, q, taken, nil, nil)
}

// note remembers whether addresses are scarce.
func (c *Claimer) note(ctx context.Context, q *Request, scarce bool) error {
	return c.jot(ctx, q, func(s *blocks.State) { s.Scarce = scarce })
}

// newID returns the ID of the next claim. Every claim has another one: an answer to an older request, which may arrive at
// any time, fits no newer claim.
func (c *Claimer) newID(node string) string {
	return pool.NodeID{Node: node, Machine: c.Node.Machine, Boot: c.Node.Boot, Nonce: nonce()}.String()
}

func nonce() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }

// mirrorMark ends the nonce of an entry that stands for a claim in a pool that overlaps.
const mirrorMark = "m"
