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
	"github.com/sluice-cni/sluice/pkg/test/addrhistory"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// world is a store, nodes and writers like whereabouts; one step of them happens at a time. A seed decides the order of
// the steps, which requests and answers are lost, which requests arrive later, and where processes are killed.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	calm bool // no faults any more
	mute bool // the store does not say how a change has left a pool

	pools   map[string]*pool.Object
	version map[string]int  // resourceVersion
	late    []func()        // requests under way whose sender has given up
	gone    map[string]bool // owners of holds

	reservations map[string]string // of whereabouts: pods by name

	owner map[netip.Addr]string // by which pod an address is used
	past  addrhistory.History
	tick  int64
	nodes []*modelNode
	now   time.Time

	waiting []*actor
	steps   int
}

// actor is a process. It runs alone, until it needs the store or sleeps.
type actor struct {
	name   string
	resume chan verdict
	yield  chan bool // true: it waits for its turn; false: it has ended
}

type verdict int

const (
	goOn verdict = iota
	loseRequest
	loseAnswer
	delay
	killBefore
	killBehind
)

// killed ends a process without a trace.
type killed struct{}

// step gives the turn to another process, and returns what happens to the request.
func (w *world) step(a *actor) verdict {
	a.yield <- true
	return <-a.resume
}

// spawn starts a process. It ends when f returns or is killed.
func (w *world) spawn(name string, f func(a *actor)) {
	a := &actor{name: name, resume: make(chan verdict), yield: make(chan bool)}
	w.waiting = append(w.waiting, a)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(killed); !ok {
					panic(p)
				}
			}
			a.yield <- false
		}()
		<-a.resume
		f(a)
	}()
}

// run lets processes take turns until none is left.
func (w *world) run() {
	for len(w.waiting) > 0 {
		w.steps++
		w.now = w.now.Add(time.Duration(w.rnd.IntN(200)) * time.Millisecond)
		if len(w.late) > 0 && w.rnd.IntN(60) == 0 {
			i := w.rnd.IntN(len(w.late))
			f := w.late[i]
			w.late = slices.Delete(w.late, i, i+1)
			f()
		}
		i := w.rnd.IntN(len(w.waiting))
		a := w.waiting[i]
		v := goOn
		if !w.calm && w.rnd.IntN(8) == 0 {
			v = verdict(w.rnd.IntN(int(killBehind) + 1))
		}
		a.resume <- v
		if !<-a.yield {
			w.waiting = slices.Delete(w.waiting, i, i+1)
		}
	}
}

// modelNode is a node of ours.
type modelNode struct {
	w    *world
	id   blocks.Node
	dir  string
	boot int
	pods map[string]modelPod
	next int
	gone bool
}

type modelPod struct {
	addr netip.Addr
	off  uint64
	q    *Request
}

func (w *world) newNode() *modelNode {
	n := &modelNode{w: w, dir: w.t.TempDir(), pods: map[string]modelPod{}}
	n.id.Name, n.id.Machine = fmt.Sprintf("n%d", len(w.nodes)), fmt.Sprintf("%08x", len(w.nodes))
	n.identify()
	return n
}

func (n *modelNode) identify() {
	boot := fmt.Sprintf("%s-%d", n.id.Name, n.boot)
	n.id.BootID, n.id.Boot = boot, blocks.HashBoot(boot)
}

func (n *modelNode) claimer(a *actor) *Claimer {
	return &Claimer{
		Store: &modelStore{n.w, a}, Node: n.id, Dir: n.dir, Log: log.NewNop(), FullWait: time.Second, Patience: time.Second,
		Rand: n.w.rnd.Float64, Now: func() time.Time { return n.w.now },
		Sleep: func(_ context.Context, d time.Duration) error {
			if v := n.w.step(a); v == killBefore || v == killBehind {
				panic(killed{})
			}
			n.w.now = n.w.now.Add(d)
			return nil
		},
	}
}

// add is what the plugin does, for any pod, or for one whose address is kept for an owner.
func (n *modelNode) add(a *actor, q *Request) {
	ctx, began := context.Background(), n.w.past.Time()
	for range 3 {
		id := fmt.Sprintf("%s/%d.%d", n.id.Name, n.boot, n.next+1)
		open := func() (*blocks.File, error) { return blocks.OpenFor(ctx, n.dir, "model", q.Pool, id, "net1") }
		if q.Hold != "" {
			open = func() (*blocks.File, error) { return blocks.Open(ctx, n.dir, "model", q.Pool) }
		}
		f, err := open()
		if err != nil {
			n.w.t.Fatal(err)
		}
		off, ok := f.Next(&q.Range)
		if q.Hold != "" {
			off, ok = f.Held(q.Hold)
		}
		if _, used := f.Used[off]; used && ok && q.Hold != "" {
			f.Close()
			return // another container of the node has it
		}
		if ok && f.Current(n.id) {
			n.next++
			f.Used[off] = blocks.Use{ContainerID: id, IfName: "net1"}
			f.Last = off
			if err := f.Save(); err != nil {
				n.w.t.Fatal(err)
			}
			f.Close()
			addr, _ := pool.Addr(q.Range.CIDR, off)
			n.pods[id] = modelPod{addr, off, q}
			n.w.use(addr, id, began)
			return
		}
		f.Close()
		if n.claimer(a).Ensure(ctx, q) != nil {
			return
		}
	}
}

// del deletes a pod.
func (n *modelNode) del() {
	if ids := slices.Sorted(maps.Keys(n.pods)); len(ids) > 0 {
		id := ids[0]
		p := n.pods[id]
		f, err := blocks.OpenFor(context.Background(), n.dir, "model", p.q.Pool, id, "net1")
		if err != nil {
			n.w.t.Fatal(err)
		}
		n.w.free(p.addr, id)
		delete(n.pods, id)
		f.Release(id, "net1")
		if err := f.Save(); err != nil {
			n.w.t.Fatal(err)
		}
		f.Close()
	}
}

// reboot ends all pods of the node.
func (n *modelNode) reboot() {
	for id, p := range n.pods {
		n.w.free(p.addr, id)
	}
	clear(n.pods)
	n.boot++
	n.identify()
}

// kept makes some requests ones for a pod of a StatefulSet, whose address is kept. Several nodes ask for one at a time: pods
// were force-deleted.
func (w *world) kept(q *Request) *Request {
	owner := pool.HoldFor(pool.HeldPod, "ns", fmt.Sprintf("web-%d", w.rnd.IntN(4)), "net1")
	if w.rnd.IntN(3) > 0 || w.gone[owner] {
		return q
	}
	k := *q
	k.Hold = owner
	if w.rnd.IntN(20) == 0 {
		w.gone[owner] = true // no later pod asks
	}
	return &k
}

func (w *world) use(a netip.Addr, pod string, began int64) {
	if by, ok := w.owner[a]; ok {
		w.t.Fatalf("step %d: %s has %s and %s", w.steps, a, by, pod)
	}
	w.owner[a] = pod
	w.past.Took(a, pod, began)
}

func (w *world) free(a netip.Addr, pod string) {
	if w.owner[a] == pod {
		delete(w.owner, a)
		w.past.Released(a, pod, w.past.Time())
	}
}

// whereabouts allocates as whereabouts does: the lowest free offset, by a patch that tests the resourceVersion. Its pods
// live until its reconciler or its DEL removes them.
func (w *world) whereabouts(a *actor, q *Request, pod string) {
	began := w.past.Time()
	for range 5 {
		w.step(a)
		w.create(q.Pool, q.Range.CIDR.String())
		seen, version := clone(w.pools[q.Pool]), w.version[q.Pool]
		w.step(a)
		taken, _ := seen.Taken()
		set := map[uint64]bool{}
		for off := range taken {
			set[off] = true
		}
		offs := q.Range.Choose(set, 0, 1)
		if len(offs) == 0 || w.version[q.Pool] != version {
			continue
		}
		addr, _ := pool.Addr(q.Range.CIDR, offs[0])
		w.pools[q.Pool].Allocations[pool.Key(offs[0])] = pool.Entry{ID: pod, PodRef: "ns/" + pod, IfName: "net1"}
		w.version[q.Pool]++
		w.use(addr, pod, began)
		return
	}
}

// reconcile is whereabouts' reconciler: it reads all, and removes what no live pod has, but for an empty podref.
func (w *world) reconcile(a *actor) {
	for _, name := range slices.Sorted(maps.Keys(w.pools)) {
		w.step(a)
		seen, version := clone(w.pools[name]), w.version[name]
		w.step(a)
		if w.version[name] != version {
			continue
		}
		p, _ := seen.Prefix()
		for key, e := range seen.Allocations {
			off, err := pool.ParseKey(key)
			addr, _ := pool.Addr(p, off)
			if err != nil || e.PodRef != "" && w.owner[addr] != e.ID {
				delete(w.pools[name].Allocations, key)
				w.version[name]++
			}
		}
	}
}

func request(cidr string, overlapping bool) *Request {
	q := &Request{BlockSize: 4, Overlapping: overlapping}
	q.Range.CIDR = netip.MustParsePrefix(cidr)
	q.Range.First, q.Range.Last, _ = pool.Usable(q.Range.CIDR)
	q.Pool = pool.Name("", "", cidr)
	return q
}

// simulate runs one world. whereabouts writes into the first pool only: it looks at its reservations for the others,
// which a reconciler of it removes.
func simulate(t *testing.T, seed uint64, nodes, rounds int) {
	t.Helper()
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 7)), pools: map[string]*pool.Object{}, version: map[string]int{},
		owner: map[netip.Addr]string{}, now: time.Now(), gone: map[string]bool{}, reservations: map[string]string{},
	}
	w.past.Now = func() int64 {
		w.tick++
		return w.tick
	}
	qs := []*Request{request("10.0.0.0/27", true), request("10.0.0.8/29", true), request("10.0.0.0/26", true)}
	for range nodes {
		w.nodes = append(w.nodes, w.newNode())
	}
	foreign := map[string]bool{}
	// The pool of whereabouts is there: one that it makes beside claims of an older one is what ADR 40 says cannot be held.
	// In a third of the worlds nodes make the others, and in a third there is no other one.
	w.mute = seed%2 == 1
	switch seed % 3 {
	case 0:
		for _, q := range qs {
			w.create(q.Pool, q.Range.CIDR.String())
		}
	case 1:
		w.create(qs[0].Pool, qs[0].Range.CIDR.String())
	case 2:
		qs = qs[:1]
		w.create(qs[0].Pool, qs[0].Range.CIDR.String())
	}
	for round := range rounds {
		for _, n := range w.nodes {
			if n.gone {
				continue
			}
			q := qs[w.rnd.IntN(len(qs))]
			switch k := w.rnd.IntN(20); {
			case k < 9:
				w.spawn(n.id.Name+" ADD", func(a *actor) { n.add(a, w.kept(q)) })
			case k < 14:
				n.del()
			case k < 16:
				w.spawn(n.id.Name+" upkeep", func(a *actor) { _ = n.claimer(a).Upkeep(context.Background(), q) })
			case k < 17:
				n.reboot()
			case k < 18 && round > rounds/2 && w.rnd.IntN(20) == 0:
				n.reboot() // its pods are gone, and so is its Node object
				n.gone = true
			}
		}
		switch pod := fmt.Sprintf("w%d", round); w.rnd.IntN(5) {
		case 0:
			foreign[pod] = true
			w.spawn("whereabouts", func(a *actor) { w.whereabouts(a, qs[0], pod) })
		case 1: // pods of whereabouts end
			for pod := range foreign {
				for a, by := range w.owner {
					if by == pod {
						w.free(a, pod)
					}
				}
			}
		case 2:
			w.spawn("reconciler", w.reconcile)
		}
		w.run()
	}
	if !w.past.OK(time.Minute) {
		t.Errorf("no order of %d steps gives each address to one pod at a time", w.past.Len())
	}
	w.settle(qs)
}

// settle ends all pods, lets every node finish without faults, and looks for leaks.
func (w *world) settle(qs []*Request) {
	w.calm = true
	for _, f := range w.late {
		f()
	}
	w.late = nil
	clear(w.owner)
	w.spawn("reconciler", w.reconcile)
	w.run()
	ctx := context.Background()
	for range 2 { // what the first finds in the way, the second has not
		for _, n := range w.nodes {
			for _, q := range qs {
				if n.gone {
					continue
				}
				for len(n.pods) > 0 {
					n.del()
				}
				w.spawn(n.id.Name, func(a *actor) {
					c := n.claimer(a)
					if err := c.TakeUp(ctx, q); err != nil {
						w.t.Errorf("%s takes up %s: %v", n.id.Name, q.Pool, err)
					}
					if err := c.Release(ctx, q); err != nil {
						w.t.Errorf("%s gives %s back: %v", n.id.Name, q.Pool, err)
					}
					err := c.locked(ctx, q, func(o *operation, ctx context.Context) error { return o.removeLateMirrors(ctx, n.id.Name) })
					if err != nil {
						w.t.Error(err)
					}
				})
				w.run()
			}
		}
	}
	w.dropHolds(qs)
	for name, o := range w.pools {
		for key, e := range o.Allocations {
			id, _ := pool.ParseNodeID(e.ID)
			if !slices.ContainsFunc(w.nodes, func(n *modelNode) bool { return n.gone && n.id.Name == id.Node }) {
				w.t.Errorf("leak: %s %s %+v", name, key, e)
			}
		}
	}
}

// dropHolds ends all owners, and frees what was kept for them as a node does that finds a pool full.
func (w *world) dropHolds(qs []*Request) {
	for _, o := range w.pools {
		for _, e := range o.Allocations {
			if h, ok := pool.ParseHold(e.ID); ok {
				w.gone[h.Owner] = true
			}
		}
	}
	n := w.newNode()
	for _, q := range slices.Concat(qs, qs) { // what stands in other pools for a hold goes after it
		w.spawn(n.id.Name, func(a *actor) {
			if err := freeGone(n.claimer(a), q); err != nil {
				w.t.Error(err)
			}
		})
		w.run()
	}
}

// freeGone frees what nodes and owners have in a pool that are gone.
func freeGone(c *Claimer, q *Request) error {
	return c.locked(context.Background(), q, func(o *operation, ctx context.Context) error {
		_, taken, err := o.pools.read(ctx)
		if err == nil {
			_, err = o.freeIn(ctx, overlap{q.Pool, q.Range.CIDR, taken})
		}
		return err
	})
}

var seeds = flag.Int("seeds", 60, "how many worlds TestModel simulates")

// No order of steps, loss of a request or an answer, late request, kill or reboot gives an address twice, or leaks one.
func TestModel(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, seed, 3, 60)
		})
	}
}
