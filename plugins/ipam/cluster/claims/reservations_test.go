// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// updateAll changes the node's file as ADD and DEL do.
func updateAll(c *Claimer, q *Request, change func(s *blocks.State)) error {
	file := c.operation(q).file
	return file.update(context.Background(), withUses, change)
}

// used takes addresses of the node's file for pods, and returns them by pod.
func (n *modelNode) used(c *Claimer, q *Request, pods ...string) map[string]uint64 {
	out := map[string]uint64{}
	for _, pod := range pods {
		if err := c.Ensure(context.Background(), q); err != nil {
			n.w.t.Fatal(err)
		}
		err := updateAll(c, q, func(s *blocks.State) {
			off, _ := s.Next(&q.Range)
			s.Used[off], out[pod] = blocks.Use{ContainerID: pod, IfName: "net1", PodRef: "ns/" + pod}, off
		})
		if err != nil {
			n.w.t.Fatal(err)
		}
	}
	return out
}

// foreign has whereabouts' allocation and reservation of a pod.
func (w *world) foreign(q *Request, off uint64, pod string) {
	w.create(q.Pool, q.Range.CIDR.String())
	w.pools[q.Pool].Allocations[pool.Key(off)] = pool.Entry{ID: pod, PodRef: "ns/" + pod, IfName: "net1"}
	w.reservations[w.reservation(q, off)] = "ns/" + pod
}

func (w *world) reservation(q *Request, off uint64) string {
	a, _ := pool.Addr(q.Range.CIDR, off)
	return pool.ReservationName(q.Network, a)
}

// calmly runs one process without faults.
func calmly(t *testing.T, f func(w *world, n *modelNode, c *Claimer)) {
	t.Helper()
	w := calmWorld(t)
	n := w.newNode()
	w.spawn("process", func(a *actor) { f(w, n, n.claimer(a)) })
	w.run()
}

// families are small pools of both.
func families() []*Request {
	return []*Request{request("10.0.0.0/28", true), request("fd00::/124", true)}
}

// What a node gives back to whereabouts is reserved over all pools, as what whereabouts allocates. An address that is reserved for another pod
// stays the node's, and is named.
func TestExportReserves(t *testing.T) {
	t.Parallel()
	for _, q := range families() {
		calmly(t, func(w *world, n *modelNode, c *Claimer) {
			used := n.used(c, q, "a", "b", "other")
			w.reservations[w.reservation(q, used["other"])] = "ns/stranger"
			exported, err := c.Export(context.Background(), q)
			if exported != 2 || !errors.Is(err, ErrConflict) {
				t.Errorf("%d %v", exported, err)
			}
			want := map[string]string{
				w.reservation(q, used["a"]): "ns/a", w.reservation(q, used["b"]): "ns/b", w.reservation(q, used["other"]): "ns/stranger",
			}
			if diff := cmp.Diff(want, w.reservations); diff != "" {
				t.Error(diff)
			}
			if e := w.pools[q.Pool].Allocations[pool.Key(used["a"])]; e != (pool.Entry{ID: "a", PodRef: "ns/a", IfName: "net1"}) {
				t.Errorf("%+v", e)
			}
			if _, node := pool.ParseNodeID(w.pools[q.Pool].Allocations[pool.Key(used["other"])].ID); !node {
				t.Error("the address with two owners is not the node's any more")
			}
		})
	}
}

// What a node takes over from whereabouts is reserved no more, also if the import was killed before that.
func TestImportUnreserves(t *testing.T) {
	t.Parallel()
	for _, q := range families() {
		calmly(t, func(w *world, n *modelNode, c *Claimer) {
			w.foreign(q, 3, "here")
			w.foreign(q, 4, "elsewhere")
			imported, err := c.Import(context.Background(), q, func(e pool.Entry) bool { return e.PodRef == "ns/here" })
			if err == nil {
				err = c.Unreserve(context.Background(), q)
			}
			if imported != 1 || err != nil {
				t.Errorf("%d %v", imported, err)
			}
			if diff := cmp.Diff(map[string]string{w.reservation(q, 4): "ns/elsewhere"}, w.reservations); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An address that whereabouts has reserved is not claimed, though no pool has it: on a new node, by the memory of the pool, and when it is
// asked for. A full pool names the pod.
func TestReservedIsTaken(t *testing.T) {
	t.Parallel()
	for _, q := range families() {
		calmly(t, func(w *world, n *modelNode, c *Claimer) {
			w.reservations[w.reservation(q, 5)] = "ns/left"
			w.reservations["net1-"+w.reservation(q, 6)] = "ns/of-another-network"
			wish := *q
			wish.Wanted, _ = pool.Addr(q.Range.CIDR, 5)
			var full *FullError
			if err := c.Ensure(context.Background(), &wish); !errors.As(err, &full) || full.WantedOfOwner != "pod ns/left" {
				t.Errorf("asked for: %v", err)
			}
			var err error
			pods := map[uint64]bool{}
			for i := 0; err == nil && i < 20; i++ {
				if err = c.Ensure(context.Background(), q); err == nil {
					for _, off := range n.used(c, q, fmt.Sprint("p", i)) {
						pods[off] = true
					}
				}
			}
			if !errors.As(err, &full) || len(pods) != 13 || pods[5] || !pods[6] {
				t.Errorf("%v: %v", pods, err)
			}
			delete(w.reservations, w.reservation(q, 5)) // whereabouts' reconciler
			w.now = w.now.Add(aloneFor + time.Second)
			if err := c.Ensure(context.Background(), q); err != nil {
				t.Errorf("no longer reserved: %v", err)
			}
		})
	}
}

// What whereabouts allocated for many attachments is released in one change, after the reservations, and what the store did not do stays
// noted: upkeep does it, on a node without an address of the pool too.
func TestForget(t *testing.T) {
	t.Parallel()
	for _, q := range families() {
		calmly(t, func(w *world, n *modelNode, c *Claimer) {
			var owed []blocks.Owed
			for off := uint64(1); off < 9; off++ {
				pod := fmt.Sprint("w", off)
				w.foreign(q, off, pod)
				owed = append(owed, blocks.Owed{ContainerID: pod, IfName: "net1"})
			}
			w.pools[q.Pool].Allocations[pool.Key(2)] = pool.Entry{ID: "later", PodRef: "ns/w2", IfName: "net1"} // a pod of the same name
			if err := updateAll(c, q, func(s *blocks.State) {
				for _, o := range owed[:7] {
					s.Owe(o, q.Range.CIDR, q.Network)
				}
			}); err != nil {
				t.Error(err)
			}
			left := func() map[string]string {
				out := map[string]string{}
				for _, e := range w.pools[q.Pool].Allocations {
					out[e.ID] = e.PodRef
				}
				return out
			}
			all := left()
			away := &unreachable{Store: c.Store}
			c.Store = away
			if err := c.Forget(context.Background(), q); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v", err)
			}
			if diff := cmp.Diff(all, left()); diff != "" {
				t.Error(diff)
			}
			away.back = true
			if err := c.Upkeep(context.Background(), q); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(map[string]string{"later": "ns/w2", "w8": "ns/w8"}, left()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(map[string]string{w.reservation(q, 2): "ns/w2", w.reservation(q, 8): "ns/w8"}, w.reservations); diff != "" {
				t.Error(diff)
			}
			if away.changes != 1 {
				t.Errorf("%d changes", away.changes)
			}
		})
	}
}

// A pod of the same name that takes the entry over while its reservation is being removed has one again.
func TestForgetRestores(t *testing.T) {
	t.Parallel()
	q := families()[0]
	calmly(t, func(w *world, n *modelNode, c *Claimer) {
		w.foreign(q, 3, "old")
		before := maps.Clone(w.reservations)
		if err := updateAll(c, q, func(s *blocks.State) {
			s.Owe(blocks.Owed{ContainerID: "old", IfName: "net1"}, q.Range.CIDR, q.Network)
		}); err != nil {
			t.Error(err)
		}
		c.Store = &unreachable{Store: c.Store, back: true, first: func() {
			w.pools[q.Pool].Allocations[pool.Key(3)] = pool.Entry{ID: "new", PodRef: "ns/old", IfName: "net1"}
		}}
		if err := c.Forget(context.Background(), q); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before, w.reservations); diff != "" {
			t.Error(diff)
		}
	})
}

// unreachable is a store that comes back, counts changes, and has something happen before the first.
type unreachable struct {
	Store
	back    bool
	changes int
	first   func()
}

func (s *unreachable) Get(ctx context.Context, name string) (*pool.Object, error) {
	if !s.back {
		return nil, ErrUnavailable
	}
	return s.Store.Get(ctx, name)
}

func (s *unreachable) Change(ctx context.Context, name string, c pool.Change) (*pool.Object, error) {
	if s.changes++; s.first != nil {
		s.first()
		s.first = nil
	}
	return s.Store.Change(ctx, name, c)
}

// Upkeep that begins after all addresses were released claims none ahead: no pod of the node needs them.
func TestUpkeepAfterRelease(t *testing.T) {
	t.Parallel()
	q := families()[0]
	calmly(t, func(w *world, n *modelNode, c *Claimer) {
		n.used(c, q, "a")
		err := updateAll(c, q, func(s *blocks.State) { s.Release("a", "net1") })
		if err == nil {
			err = errors.Join(c.Release(context.Background(), q), c.Upkeep(context.Background(), q))
		}
		if left := w.pools[q.Pool].Allocations; err != nil || len(left) > 0 {
			t.Errorf("%v: %v", left, err)
		}
	})
}
