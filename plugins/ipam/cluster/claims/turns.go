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
	// firstTurn and longestTurn bound the turn.
	firstTurn   = 500 * time.Millisecond
	longestTurn = 3 * time.Second
	// turnFor is for how long it holds after a change.
	turnFor = time.Minute
)

// turn is the time within which a change waits for a random moment, so that the changes of nodes do not disturb each other. It is 0 unless
// the node's last changes were slow. An API server begins a change of an object again when another one was faster (GuaranteedUpdate): of
// ten at a time it stores one, and has worked on nine for nothing.
func (c *Claimer) turn(name string) time.Duration {
	m := c.recall(name)
	if !c.within(m.TurnNoted, turnFor) {
		return 0
	}
	return m.Turn
}

// awaitTurn waits before a change.
func (c *Claimer) awaitTurn(ctx context.Context, name string) error {
	turn := c.turn(name)
	if turn == 0 {
		return nil
	}
	return c.sleep(ctx, time.Duration(c.random()*float64(turn)))
}

// noteTurn notes how long a change took. A slow one doubles the turn, another halves it.
func (c *Claimer) noteTurn(name string, took time.Duration) {
	before := c.turn(name)
	turn := before / 2
	if took >= slowChange {
		turn = min(max(2*before, firstTurn), longestTurn)
	}
	if turn < firstTurn {
		turn = 0
	}
	m := c.recall(name)
	if turn == 0 && m.Turn == 0 {
		return
	}
	m.Turn, m.TurnNoted = turn, c.now()
	c.keepMind(name, &m)
}
