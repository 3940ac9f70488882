// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/filelock"
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

	// FullWait is how long a full pool is waited for: other nodes give back what they do not use.
	FullWait time.Duration
	// Patience is how long a store that does not answer is asked again.
	Patience time.Duration
	// Sleep waits; nil: a timer. Rand is in [0,1); nil: the process's.
	Sleep func(ctx context.Context, d time.Duration) error
	Rand  func() float64
	Now   func() time.Time

	lookedForDead time.Time
	// others are the pools that overlapped at the last look, and elsewhere what others have there: offsets of the pool.
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
)

// pause waits before the n-th repetition: exponentially longer, with jitter.
func (c *Claimer) pause(ctx context.Context, n int) error {
	d := min(longPause, firstPause<<min(n, 10))
	r := c.Rand
	if r == nil {
		r = rand.Float64
	}
	return c.sleep(ctx, d/2+time.Duration(r()*float64(d)))
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
	f, err := filelock.Acquire(ctx, filepath.Join(c.Dir, c.Store.Place(), q.Pool+".claim"))
	if err != nil {
		return nil, fmt.Errorf("another call of this node waits for pool %s: %w: %w", q.Pool, ErrUnavailable, err)
	}
	return func() { _ = f.Close() }, nil
}

// open opens the file of the pool.
func (c *Claimer) open(ctx context.Context, q *Request) (*blocks.File, error) {
	return blocks.Open(ctx, c.Dir, c.Store.Place(), q.Pool)
}

// update changes the file of the pool.
func (c *Claimer) update(ctx context.Context, q *Request, change func(s *blocks.State) error) error {
	f, err := c.open(ctx, q)
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
	_, taken, err := c.read(ctx, q)
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
	burst, err := c.burst(ctx, q)
	if err != nil {
		return err
	}
	offsets, scarce, err := c.pick(ctx, burst, taken)
	if errors.Is(err, ErrConflict) {
		return err
	}
	if err != nil || ahead && scarce {
		return errors.Join(err, c.note(ctx, q, scarce || err != nil))
	}
	claim := blocks.Claim{Runs: blocks.Runs(offsets)}
	err = c.update(ctx, q, func(s *blocks.State) error {
		claim.ID = c.newID(s.Node)
		s.Trying = append(s.Trying, claim)
		s.Scarce, s.Claimed = scarce, c.now().Unix()
		return nil
	})
	if err != nil {
		return err
	}
	add := map[uint64]pool.Entry{}
	for _, off := range offsets {
		add[off] = pool.Entry{ID: claim.ID}
	}
	return c.request(ctx, q, claim.ID, pool.Change{Add: add})
}

const (
	// burstPause is how soon after another claim one counts as part of a burst: many pods start on the node.
	burstPause = 10
	// maxBurst is what one change of any store can have.
	maxBurst = 120
)

// burst returns the request for more than a block if the node has claimed one a moment ago: not more than it may keep unused.
func (c *Claimer) burst(ctx context.Context, q *Request) (*Request, error) {
	f, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if q.BlockSize == 1 || q.Wanted.IsValid() || c.now().Unix()-f.Claimed > burstPause {
		return q, nil
	}
	more := *q
	more.burst = min(maxBurst, blocks.MostUnused(q.BlockSize)-len(f.Unused()))
	return &more, nil
}

// pick chooses offsets for the next claim. If there is none it frees what is kept for an owner that has gone, and says by ErrConflict that
// it did: the caller looks again.
func (c *Claimer) pick(ctx context.Context, q *Request, taken map[uint64]pool.Entry) ([]uint64, bool, error) {
	offsets, scarce, err := c.choose(q, taken)
	if errors.As(err, new(*FullError)) && len(c.elsewhere) > 0 {
		freed, derr := c.freeElsewhere(ctx)
		if derr != nil {
			return nil, false, derr
		}
		if freed {
			return nil, false, ErrConflict
		}
	}
	var full *FullError
	if errors.As(err, &full) && c.now().Sub(c.lookedForDead) > deadPause {
		c.lookedForDead = c.now()
		freed, derr := c.freeDead(ctx, q, taken, full.Wanted != "")
		if derr != nil {
			return nil, false, derr
		}
		if freed {
			return nil, false, ErrConflict
		}
	}
	return offsets, scarce, err
}

// request asks for what stands under Trying with that ID, and confirms it.
func (c *Claimer) request(ctx context.Context, q *Request, id string, change pool.Change) error {
	err := c.Store.Change(ctx, q.Pool, change)
	if errors.Is(err, ErrConflict) { // certainly not there
		return errors.Join(err, c.update(ctx, q, func(s *blocks.State) error {
			s.Trying = without(s.Trying, id)
			return nil
		}))
	}
	if err != nil {
		return err
	}
	return c.confirm(ctx, q)
}

// note remembers whether addresses are scarce.
func (c *Claimer) note(ctx context.Context, q *Request, scarce bool) error {
	return c.update(ctx, q, func(s *blocks.State) error {
		s.Scarce = scarce
		return nil
	})
}

// newID returns the ID of the next claim. Every claim has another one: an answer to an older request, which may arrive at
// any time, fits no newer claim.
func (c *Claimer) newID(node string) string {
	return pool.NodeID{Node: node, Machine: c.Node.Machine, Boot: c.Node.Boot, Nonce: nonce()}.String()
}

func nonce() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }

// mirrorMark ends the nonce of an entry that stands for a claim in a pool that overlaps.
const mirrorMark = "m"

func without(list []blocks.Claim, id string) []blocks.Claim {
	var out []blocks.Claim
	for _, c := range list {
		if c.ID != id {
			out = append(out, c)
		}
	}
	return out
}

// deadPause is how often a process asks whether nodes are gone.
const deadPause = 30 * time.Second

// fewNodes is how many nodes a pool is expected to serve at least.
const fewNodes = 4

// choose picks the offsets of the next claim: a block, less when few are left, one when the pool is nearly full. The
// start is random, so that nodes rarely meet.
func (c *Claimer) choose(q *Request, taken map[uint64]pool.Entry) (offsets []uint64, scarce bool, err error) {
	r := &q.Range
	if q.Wanted.IsValid() {
		off, ok := pool.Offset(r.CIDR, q.Wanted)
		if !ok {
			return nil, false, fmt.Errorf("%s is not in %s", q.Wanted, r.CIDR)
		}
		if e, ok := taken[off]; ok {
			return nil, false, &FullError{Pool: q.Pool, Range: r.CIDR.String(), Wanted: q.Wanted.String(), WantedOfOwner: e.Holder()}
		}
		return []uint64{off}, false, nil
	}
	used := uint64(0)
	set := make(map[uint64]bool, len(taken))
	for off := range taken {
		set[off] = true
		if r.Dynamic(off) {
			used++
		}
	}
	for off := range c.elsewhere {
		if !set[off] {
			set[off] = true
			if r.Dynamic(off) {
				used++
			}
		}
	}
	size := r.Size()
	free := size - min(used, size)
	nodes := pool.Nodes(taken)
	nodes[c.Node.Name]++ // as good as any name for one more
	n := int(min(uint64(max(q.BlockSize, q.burst)), max(1, free/uint64(2*max(fewNodes, len(nodes))))))
	scarce = n < (q.BlockSize+1)/2
	first, last, _ := r.Bounds()
	window := min(last-first, max(4096, 4*uint64(len(taken))))
	rnd := c.Rand
	if rnd == nil {
		rnd = rand.Float64
	}
	start := first + uint64(rnd()*float64(window))
	if q.BlockSize > 1 {
		start -= (start - first) % uint64(q.BlockSize)
	}
	offsets = r.Choose(set, start, n)
	if len(offsets) == 0 {
		return nil, true, &FullError{Pool: q.Pool, Range: fmt.Sprintf("%s (%s-%s)", r.CIDR, r.First, r.Last), Size: size, Used: used, Holders: pool.Holders(taken, 3), Lent: len(nodes) > 1}
	}
	return offsets, scarce, nil
}

// freeDead frees what nodes have that are certainly gone, and what is kept for owners that are. Mirrored entries are freed
// as well: each by the node that needs it.
func (c *Claimer) freeDead(ctx context.Context, q *Request, taken map[uint64]pool.Entry, one bool) (bool, error) {
	x := verdicts{c: c, dead: map[pool.NodeID]bool{}, gone: map[string]bool{}}
	change := pool.Change{Remove: map[uint64]pool.Entry{}}
	wanted, _ := pool.Offset(q.Range.CIDR, q.Wanted)
	for off, e := range taken {
		if one && off != wanted {
			continue
		}
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
	return true, c.Store.Change(ctx, q.Pool, change)
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

func (c *Claimer) dead(ctx context.Context, id pool.NodeID) (bool, error) {
	if id.Machine == c.Node.Machine && id.Boot == c.Node.Boot || len(id.Node) > 0 && id.Node[:1] == unknownMark {
		return false, nil
	}
	return c.Store.Dead(ctx, id)
}
