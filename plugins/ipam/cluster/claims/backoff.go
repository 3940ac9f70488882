// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"time"
)

const (
	// slowChange is how long a change takes at least that other changes of the pool disturb. An API server that is not busy needs less
	// for a pool of thousands of addresses.
	slowChange = 250 * time.Millisecond
	// firstBackoff and longestBackoff bound the backoff.
	firstBackoff   = 500 * time.Millisecond
	longestBackoff = 3 * time.Second
	// backoffFor is for how long it holds after a change.
	backoffFor = time.Minute
)

// backoff is the time within which a change of a pool waits for a random moment, so that the changes of nodes do not disturb each other. It
// is 0 unless the node's last changes were slow. An API server begins a change of an object again when another one was faster
// (GuaranteedUpdate): of ten at a time it stores one, and has worked on nine for nothing. The processes of a node share it in a file.
type backoff struct {
	Wait  time.Duration `json:"wait"` // in nanoseconds
	Noted time.Time     `json:"noted"`
}

func (c *Claimer) backoff(poolName string) time.Duration {
	var b backoff
	if !readJSON(c.path(poolName, "backoff"), &b) || !c.within(b.Noted, backoffFor) {
		return 0
	}
	return b.Wait
}

// waitBackoff waits before a change.
func (c *Claimer) waitBackoff(ctx context.Context, poolName string) error {
	wait := c.backoff(poolName)
	if wait == 0 {
		return nil
	}
	return c.sleep(ctx, time.Duration(c.random()*float64(wait)))
}

// recordLatency notes how long a change took. A slow one doubles the backoff, another halves it.
func (c *Claimer) recordLatency(poolName string, took time.Duration) {
	before := c.backoff(poolName)
	next := before / 2
	if took >= slowChange {
		next = min(max(2*before, firstBackoff), longestBackoff)
	}
	if next < firstBackoff {
		next = 0
	}
	if next > 0 || before > 0 {
		writeJSON(c.path(poolName, "backoff"), backoff{next, c.now()})
	}
}
