// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	// slowChange is how long a change takes at least that other changes of the pool disturb. An API
	// server that is not busy needs less for a pool of thousands of addresses.
	slowChange = 250 * time.Millisecond
	// firstBackoff and longestBackoff bound the backoff.
	firstBackoff   = 500 * time.Millisecond
	longestBackoff = 3 * time.Second
	// backoffFor is for how long it holds after a change.
	backoffFor = time.Minute
)

// backoff is the time within which a change of a pool waits for a random moment, so that the
// changes of nodes do not disturb each other. It is 0 unless the node's last changes were slow. An
// API server begins a change of an object again when another one was faster (GuaranteedUpdate): of
// ten at a time it stores one, and has worked on nine for nothing. The processes of a node share it
// in a file.
type backoff struct {
	Wait  time.Duration `json:"wait"` // in nanoseconds
	Noted time.Time     `json:"noted"`
}

// change changes a pool after the backoff, and returns it as it is then.
func (p *pools) change(ctx context.Context, name string, change pool.Change) (*pool.Object, error) {
	if err := p.waitBackoff(ctx, name); err != nil {
		return nil, err
	}
	begin := p.c.now()
	obj, err := p.c.Store.Change(ctx, name, change)
	p.recordLatency(name, p.c.now().Sub(begin))
	return obj, err
}

// backoff returns the time that holds now.
func (p *pools) backoff(poolName string) time.Duration {
	var b backoff
	if !readJSON(p.c.path(poolName, "backoff"), &b) || !p.c.within(b.Noted, backoffFor) {
		return 0
	}
	return b.Wait
}

// waitBackoff waits before a change.
func (p *pools) waitBackoff(ctx context.Context, poolName string) error {
	wait := p.backoff(poolName)
	if wait == 0 {
		return nil
	}
	return p.c.sleep(ctx, time.Duration(p.c.random()*float64(wait)))
}

// recordLatency notes how long a change took. A slow one doubles the backoff, another halves it.
func (p *pools) recordLatency(poolName string, took time.Duration) {
	before := p.backoff(poolName)
	next := before / 2
	if took >= slowChange {
		next = min(max(2*before, firstBackoff), longestBackoff)
	}
	if next < firstBackoff {
		next = 0
	}
	if next > 0 || before > 0 {
		writeJSON(p.c.path(poolName, "backoff"), backoff{next, p.c.now()})
	}
}

const (
	firstPause = 30 * time.Millisecond
	longPause  = 2 * time.Second
	// tries bounds what a conflict repeats.
	tries = 40
)

// retry repeats what another writer of the pool has come before, with pauses.
func (c *Claimer) retry(ctx context.Context, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		if !errors.Is(err, ErrConflict) || n >= tries {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
}

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
