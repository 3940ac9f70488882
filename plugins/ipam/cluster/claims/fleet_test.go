// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// clock runs processes one at a time, each at its moment of a time that only they make pass.
type clock struct {
	now     time.Time
	waiting []*sleeper
	running *sleeper
}

type sleeper struct {
	until  time.Time
	resume chan struct{}
	yield  chan bool // true: it sleeps; false: it has ended
}

func (c *clock) spawn(f func()) {
	s := &sleeper{until: c.now, resume: make(chan struct{}), yield: make(chan bool)}
	c.waiting = append(c.waiting, s)
	go func() {
		<-s.resume
		f()
		s.yield <- false
	}()
}

func (c *clock) sleep(d time.Duration) {
	s := c.running
	s.until = c.now.Add(d)
	s.yield <- true
	<-s.resume
}

// run lets all processes come to their end, or time come to a limit.
func (c *clock) run(limit time.Time) {
	for len(c.waiting) > 0 {
		i := 0
		for k, s := range c.waiting {
			if s.until.Before(c.waiting[i].until) {
				i = k
			}
		}
		s := c.waiting[i]
		if s.until.After(limit) {
			return
		}
		c.now, c.running = s.until, s
		s.resume <- struct{}{}
		if !<-s.yield {
			c.waiting = slices.Delete(c.waiting, i, i+1)
		}
	}
}

// fleetStore is an API server with one processor. A request takes longer the more allocations the pool has.
type fleetStore struct {
	*modelStore
	f *fleet
}

// fleet is nodes that fill one pool.
type fleet struct {
	clock
	w        *world
	locked   map[string]bool // directories of nodes
	free     time.Time       // when the server is through with what it has
	requests int
	asked    int // requests until then
	kinds    map[string]int
	conflict int
	pods     int       // that wait
	done     time.Time // when the last pod had its address
	waits    []time.Duration
	// lose says that a change does not reach the store, or that its answer does not come back: 8 seconds pass either way.
	lose func() (request, answer bool)
	// patch is the processor time of a change, 0 for a server that does one request after the other. Changes at a time share two
	// processors, and all but one of them begin again, as in an API server (GuaranteedUpdate).
	patch    time.Duration
	version  int
	inFlight int
}

func (s fleetStore) serve(kind string) {
	s.f.requests++
	s.f.kinds[kind]++
	cost := 3 * time.Millisecond
	for _, o := range s.f.w.pools {
		cost += time.Duration(len(o.Allocations)) * 10 * time.Microsecond
	}
	begin := s.f.now
	if s.f.free.After(begin) {
		begin = s.f.free
	}
	s.f.free = begin.Add(cost)
	s.f.sleep(s.f.free.Sub(s.f.now))
}

func (s fleetStore) Get(_ context.Context, name string) (*pool.Object, error) {
	s.serve("Get")
	return clone(s.f.w.pools[name]), nil
}

func (s fleetStore) List(context.Context) (out []pool.Object, err error) {
	s.serve("List")
	for _, o := range s.f.w.pools {
		out = append(out, *clone(o))
	}
	return out, nil
}

func (s fleetStore) Reservations(context.Context) (map[string]string, error) {
	s.serve("Reservations")
	return map[string]string{}, nil
}

func (s fleetStore) Create(_ context.Context, name, cidr string) error {
	s.serve("Create")
	s.f.w.create(name, cidr)
	return nil
}

func (s fleetStore) Change(_ context.Context, name string, c pool.Change) (after *pool.Object, err error) {
	request, answer := false, false
	if s.f.lose != nil {
		request, answer = s.f.lose()
	}
	if request {
		s.f.sleep(8 * time.Second)
		return nil, ErrUnavailable
	}
	if s.f.patch > 0 {
		s.f.requests++
		s.f.kinds["Change"]++
		if !s.f.contend(func() bool { o := s.f.w.pools[name]; return o != nil && apply(&c, maps.Clone(o.Allocations)) }) {
			return nil, ErrUnavailable
		}
	} else {
		s.serve("Change")
	}
	if answer {
		defer func() {
			s.f.sleep(8 * time.Second)
			after, err = nil, ErrUnavailable
		}()
	}
	o := s.f.w.pools[name]
	if o == nil || !apply(&c, o.Allocations) {
		s.f.conflict++
		return nil, ErrConflict
	}
	s.f.version++
	return clone(o), nil
}

// entries is how much longer a change takes for what the pools have.
func (f *fleet) entries() (d time.Duration) {
	for _, o := range f.w.pools {
		d += time.Duration(len(o.Allocations)) * 80 * time.Microsecond
	}
	return d
}

// contend passes the time of a change until it is the first that ends, or its tests fail. It reports false if that takes longer than the
// client waits.
func (f *fleet) contend(passes func() bool) bool {
	for begin := f.now; ; {
		before := f.version
		f.inFlight++
		for left := f.patch + f.entries(); left > 0; {
			slice := min(left, 5*time.Millisecond)
			f.sleep(slice * time.Duration(max(2, f.inFlight)) / 2)
			left -= slice
		}
		f.inFlight--
		if f.now.Sub(begin) > 8*time.Second {
			f.kinds["no answer"]++
			return false
		}
		if f.version == before || !passes() {
			return true
		}
	}
}

func (s fleetStore) NodeName(_ context.Context, n blocks.Node) (string, error) {
	s.serve("NodeName")
	return n.Name, nil
}

func (s fleetStore) Dead(context.Context, []pool.NodeID) (map[pool.NodeID]bool, error) {
	s.serve("Dead")
	return map[pool.NodeID]bool{}, nil
}

// claimer is one process.
func (f *fleet) claimer(n *modelNode, rnd *rand.Rand) *Claimer {
	return &Claimer{
		Store: fleetStore{&modelStore{}, f}, Node: n.id, Dir: n.dir, Log: log.NewNop(), FullWait: 8 * time.Second, Patience: 8 * time.Second,
		Rand: rnd.Float64, Now: func() time.Time { return f.now },
		Sleep: func(_ context.Context, d time.Duration) error { f.sleep(d); return nil },
		wait: func() func() {
			for f.locked[n.dir] {
				f.sleep(time.Millisecond)
			}
			f.locked[n.dir] = true
			return func() { f.locked[n.dir] = false }
		},
	}
}

const (
	addTakes   = 10 * time.Millisecond // an ADD without the store
	startTakes = 30 * time.Millisecond // of the store program
)

// add gives one pod an address. It reports false if the pool is full for 8 seconds.
func (f *fleet) add(t *testing.T, n *modelNode, rnd *rand.Rand, q *Request, id string) bool {
	ctx := context.Background()
	for {
		f.sleep(addTakes)
		s, err := blocks.OpenFor(ctx, n.dir, "model", q.Pool, id, "net1")
		if err != nil {
			t.Fatal(err)
		}
		off, ok := s.Next(&q.Range)
		if ok && s.Current(n.id) {
			s.Used[off] = blocks.Use{ContainerID: id, IfName: "net1"}
			s.Last, s.Touched = off, f.now.UnixMilli()
			due := s.Due(&q.Range, q.BlockSize, f.now.Unix())
			if due {
				s.After = f.now.Unix() + 2
			}
			if err := s.Save(); err != nil {
				t.Fatal(err)
			}
			s.Close()
			if due {
				f.spawn(func() {
					f.sleep(startTakes)
					_ = f.claimer(n, rnd).Upkeep(ctx, q)
				})
			}
			return true
		}
		s.Close()
		f.sleep(startTakes)
		if err := f.claimer(n, rnd).Ensure(ctx, q); err != nil {
			return false
		}
		f.spawn(func() { _ = f.claimer(n, rnd).Keep(ctx, q) })
	}
}

// fill has each node add its pods, one after the other.
func fill(t *testing.T, seed uint64, cidr, last string, counts []int) *fleet {
	t.Helper()
	return newFleet(t).fill(t, seed, cidr, last, counts)
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	return &fleet{w: calmWorld(t), locked: map[string]bool{}, kinds: map[string]int{}}
}

func (f *fleet) fill(t *testing.T, seed uint64, cidr, last string, counts []int) *fleet {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	f.now = f.w.now
	q := request(cidr, true)
	q.BlockSize = 32
	if last != "" {
		q.Range.Last = netip.MustParseAddr(last)
	}
	begin := f.now
	for _, pods := range counts {
		n := f.w.newNode()
		f.w.nodes = append(f.w.nodes, n)
		f.pods += pods
		f.spawn(func() {
			for i := range pods {
				began := f.now
				for tries := 0; !f.add(t, n, rnd, q, fmt.Sprintf("%s-%d", n.id.Name, i)); tries++ {
					if tries > 20 {
						t.Errorf("%s: no address for its pod %d", n.id.Name, i)
						return
					}
				}
				f.pods--
				f.done, f.asked = f.now, f.requests
				f.waits = append(f.waits, f.now.Sub(began))
			}
		})
	}
	f.run(begin.Add(4 * time.Minute))
	if f.pods > 0 {
		t.Errorf("%d pods have no address", f.pods)
	}
	return f
}

var fleets = flag.Int("fleets", 1, "how often TestFill fills each pool")

// 10 nodes fill a pool in little time and with few requests, also when it has exactly as many addresses as pods, and when nodes
// need different numbers. Time is simulated: the machine that runs the test does not matter.
func TestFill(t *testing.T) {
	t.Parallel()
	even := func(n, each int) []int { return slices.Repeat([]int{each}, n) }
	for _, tc := range []struct {
		name, cidr, last string
		counts           []int
		seconds          float64
		requests         float64 // for an ADD
	}{
		{"a large pool", "10.0.0.0/16", "", even(10, 100), 20, 0.2},
		{"1,000 addresses exactly", "10.0.0.0/20", "10.0.3.232", even(10, 100), 20, 0.2},
		{"2,048 addresses exactly", "10.0.0.0/20", "10.0.8.0", append(even(8, 205), 204, 204), 20, 0.2},
		{"2,048 addresses exactly, uneven", "10.0.0.0/20", "10.0.8.0", []int{10, 20, 50, 100, 150, 200, 250, 300, 400, 568}, 60, 0.2},
	} {
		for seed := range uint64(*fleets) {
			t.Run(fmt.Sprint(tc.name, " ", seed), func(t *testing.T) {
				t.Parallel()
				f := fill(t, seed, tc.cidr, tc.last, tc.counts)
				took := f.done.Sub(f.w.now)
				perAdd := float64(f.asked) / float64(len(f.waits))
				slices.Sort(f.waits)
				t.Logf("%.1f s, %.3f requests per ADD, %d conflicts, p50 %v, p99 %v, %v", took.Seconds(), perAdd, f.conflict, f.waits[len(f.waits)/2], f.waits[len(f.waits)*99/100], f.kinds)
				if took.Seconds() > tc.seconds || perAdd > tc.requests {
					t.Errorf("%.1f s, want %.0f; %.3f requests per ADD, want %.1f", took.Seconds(), tc.seconds, perAdd, tc.requests)
				}
			})
		}
	}
}

// What a node could not tell the store, or has no answer to, holds nothing up for long: a process stays until the store knows.
// Otherwise the last pods of a pool with as many addresses would wait for the next ADD or DEL of that node.
func TestFillWithLosses(t *testing.T) {
	t.Parallel()
	for seed := range uint64(max(3, *fleets)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			f, rnd := newFleet(t), rand.New(rand.NewPCG(seed, 2))
			f.lose = func() (request, answer bool) {
				x := rnd.Float64()
				return x < 0.05, x > 0.95
			}
			f.fill(t, seed, "10.0.0.0/20", "10.0.3.232", slices.Repeat([]int{100}, 10))
			took := f.done.Sub(f.w.now)
			t.Logf("%.1f s, %d conflicts, %v", took.Seconds(), f.conflict, f.kinds)
			if took > 2*time.Minute {
				t.Errorf("%.1f s, want 120", took.Seconds())
			}
		})
	}
}

// Changes of one object disturb each other at the API server. Nodes that see that one takes long leave time between theirs, and claim more.
// Without that it took 72 and 194 s, and 16 and 67 changes had no answer. The second server takes a machine 15 s: -fleets 2 has it too.
func TestFillContended(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		patch, most time.Duration
		noAnswer    int
	}{
		{20 * time.Millisecond, 55 * time.Second, 3},
		{200 * time.Millisecond, 170 * time.Second, 25},
	}[:min(2, *fleets)] {
		t.Run(tc.patch.String(), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.patch = tc.patch
			f.fill(t, 0, "10.0.0.0/20", "10.0.8.0", append(slices.Repeat([]int{205}, 8), 204, 204))
			took := f.done.Sub(f.w.now)
			t.Logf("%v, %d conflicts, %.2f requests for an ADD, %v", took, f.conflict, float64(f.asked)/float64(len(f.waits)), f.kinds)
			if took > tc.most || f.kinds["no answer"] > tc.noAnswer {
				t.Errorf("%v, %d changes without an answer, want %v and %d", took, f.kinds["no answer"], tc.most, tc.noAnswer)
			}
		})
	}
}
