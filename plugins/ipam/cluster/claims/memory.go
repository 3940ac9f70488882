// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	// freshFor is how old the memory of a pool may be for a claim without a look at it before.
	freshFor = 10 * time.Second
	// aloneFor is for how long a pool without one that overlaps counts as that. Another node that makes one later enters
	// its claims into this pool too; whereabouts does not.
	aloneFor = 30 * time.Second
	// deadPause is how often a node asks whether others are gone.
	deadPause = 5 * time.Second
)

// memory is what the processes of a node remember of a pool, in a file. It saves requests. What it says of free addresses
// may be wrong: a claim of one that is taken changes nothing. What it says of overlapping pools holds, see
// docs/adr/0040-cluster-addresses.md.
type memory struct {
	Boot string `json:"boot"`
	UID  string `json:"uid"` // of the pool's object

	// Range is the object's, as it has it. A claim without a look asks for it: in another range an offset is another address.
	Range string `json:"range"`

	Seen  time.Time   `json:"seen"`  // when the pool was as below
	Taken [][2]uint64 `json:"taken"` // first and last offset
	Nodes []string    `json:"nodes"` // of pool.Nodes

	Alone time.Time `json:"alone"` // when no pool overlapped, and the pool was there
	// Reserved are offsets that whereabouts had reserved for pods at a time. See reservedNow.
	Reserved     map[uint64]string `json:"reserved,omitempty"`
	ReservedSeen time.Time         `json:"reservedSeen"`

	LookedForDead time.Time `json:"lookedForDead"`

	Turn      time.Duration `json:"turn"`      // in nanoseconds, see awaitTurn
	TurnNoted time.Time     `json:"turnNoted"` // by the last change
}

func (c *Claimer) memoryPath(name string) string {
	return filepath.Join(c.Dir, c.Store.Place(), name+".seen")
}

// recall reads the memory. One that cannot be read is empty. The caller has the lock of the pool's claims.
func (c *Claimer) recall(name string) memory {
	var m memory
	text, err := os.ReadFile(c.memoryPath(name))
	if err != nil || json.Unmarshal(text, &m) != nil || m.Boot != c.Node.Boot {
		return memory{Boot: c.Node.Boot}
	}
	return m
}

// keepMind writes the memory. Without it the next claim asks more.
func (c *Claimer) keepMind(name string, m *memory) {
	text, err := json.Marshal(m)
	path := c.memoryPath(name)
	if err == nil {
		err = file.Write(path, text, file.Options{})
	}
	if err != nil {
		_ = os.Remove(path)
	}
}

// remember notes how a pool is.
func (c *Claimer) remember(q *Request, o *pool.Object, taken map[uint64]pool.Entry) {
	m := c.recall(q.Pool)
	if m.UID != o.UID {
		m = memory{Boot: c.Node.Boot, UID: o.UID, LookedForDead: m.LookedForDead, Turn: m.Turn, TurnNoted: m.TurnNoted}
	}
	m.Range = o.Range
	m.Seen, m.Taken, m.Nodes = c.now(), blocks.Runs(slices.Collect(maps.Keys(taken))), slices.Sorted(maps.Keys(pool.Nodes(taken)))
	c.keepMind(q.Pool, &m)
}

// within reports whether a time is at most that long ago. After a step of the clock it is not.
func (c *Claimer) within(t time.Time, d time.Duration) bool {
	age := c.now().Sub(t)
	return age >= 0 && age <= d
}

// alone reports whether no pool overlaps with the one of this UID.
func (c *Claimer) alone(q *Request, uid string) bool {
	if !q.Overlapping {
		return true
	}
	m := c.recall(q.Pool)
	return uid != "" && m.UID == uid && c.within(m.Alone, aloneFor)
}

// claimUnseen claims a block by the memory of the pool: one request instead of two. It reports false if the caller has to
// look at the pool first.
func (c *Claimer) claimUnseen(ctx context.Context, q *Request, ahead bool) (bool, error) {
	m := c.recall(q.Pool)
	if q.Hold != "" || q.Wanted.IsValid() || m.UID == "" || m.Range == "" || !c.within(m.Seen, freshFor) || !c.alone(q, m.UID) || q.Overlapping && !c.within(m.ReservedSeen, aloneFor) {
		return false, nil
	}
	f, err := c.open(ctx, q)
	if err != nil {
		return false, err
	}
	s := f.State
	f.Close()
	if !s.Current(c.Node) || s.CIDR != q.Range.CIDR {
		return false, nil
	}
	if !ahead && len(s.Spare(&q.Range)) > 0 {
		return true, nil
	}
	v := newView(q, nil, nil)
	for _, off := range (blocks.Claim{Runs: m.Taken}).Offsets() {
		v.take(q, off)
	}
	for off := range m.Reserved {
		v.take(q, off)
	}
	for _, t := range s.Trying { // the store may have it by now
		for _, off := range t.Offsets() {
			v.take(q, off)
		}
	}
	for _, n := range m.Nodes {
		v.nodes[n] = true
	}
	offsets, scarce, err := c.choose(c.burst(q, &s), v, s.Node)
	if err != nil || scarce && ahead {
		return false, nil //nolint:nilerr // the pool may have some by now
	}
	err = c.claimOffsets(ctx, q, offsets, scarce, m.Range)
	if errors.Is(err, ErrConflict) {
		m = c.recall(q.Pool)
		m.Seen = time.Time{}
		c.keepMind(q.Pool, &m)
		return false, nil
	}
	return true, err
}
