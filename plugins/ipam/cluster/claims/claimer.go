// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Claimer does what a node wants of the store. One process has one; processes of a node exclude
// each other by a lock.
type Claimer struct {
	Store Store
	Node  blocks.Node
	Dir   string // of the node's files
	Log   *log.Logger
	// Reopen returns the store anew, for a process that outlives its credentials; nil: they do not
	// end.
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
}

// Ensure makes sure that the node has an unused address of the range, or the address that is
// wanted. The caller takes it from the node's file.
func (c *Claimer) Ensure(ctx context.Context, q *Request) error {
	return c.locked(ctx, q, (*operation).ensure)
}

// TakeUp brings the node's file and the pool together, and claims nothing more.
func (c *Claimer) TakeUp(ctx context.Context, q *Request) error {
	return c.locked(ctx, q, (*operation).catchUp)
}

// Release gives all unused addresses back.
func (c *Claimer) Release(ctx context.Context, q *Request) error {
	return c.locked(ctx, q, func(o *operation, ctx context.Context) error {
		return errors.Join(o.releaseHeld(ctx), o.release(ctx, allBut(0)))
	})
}

// operation is one call's work on one pool.
type operation struct {
	c     *Claimer
	q     *Request
	file  nodeFile
	pools pools
}

// operation has read nothing yet.
func (c *Claimer) operation(q *Request) *operation {
	return &operation{
		c: c, q: q, file: nodeFile{dir: c.Dir, place: c.Store.Place(), pool: q.Pool},
		pools: pools{c: c, q: q, cache: cache{Boot: c.Node.Boot, path: c.path(q.Pool, "seen")}},
	}
}

// locked does work while no other process of the node talks to the store about the pool. The node's
// file stays free, so ADD and DEL go on.
func (c *Claimer) locked(ctx context.Context, q *Request, work func(o *operation, ctx context.Context) error) error {
	if c.wait != nil {
		defer c.wait()()
	} else {
		f, err := file.AcquireLock(ctx, c.path(q.Pool, "claim"))
		if err != nil {
			return fmt.Errorf("another call of this node waits for pool %s: %w: %w", q.Pool, ErrUnavailable, err)
		}
		defer f.Close()
	}
	o := c.operation(q)
	o.pools.cache.load()
	if err := o.file.load(ctx); err != nil {
		return err
	}
	return work(o, ctx)
}

// path returns a file of the node about a pool.
func (c *Claimer) path(poolName, kind string) string {
	return filepath.Join(c.Dir, c.Store.Place(), poolName+"."+kind)
}

func (c *Claimer) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// within reports whether a time is at most that long ago. After a step of the clock it is not.
func (c *Claimer) within(t time.Time, d time.Duration) bool {
	age := c.now().Sub(t)
	return age >= 0 && age <= d
}
