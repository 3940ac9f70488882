// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// calls counts requests.
type calls struct {
	*modelStore
	n *int
}

func (s calls) count() *modelStore {
	*s.n++
	return s.modelStore
}

func (s calls) Get(ctx context.Context, name string) (*pool.Object, error) {
	return s.count().Get(ctx, name)
}
func (s calls) List(ctx context.Context) ([]pool.Object, error) { return s.count().List(ctx) }
func (s calls) Change(ctx context.Context, name string, c pool.Change) (*pool.Object, error) {
	return s.count().Change(ctx, name, c)
}

// Many pods that start at a time on a node take few requests, and leave it no more than it keeps.
func TestBurst(t *testing.T) {
	t.Parallel()
	w := calmWorld(t)
	q := request("10.0.0.0/16", true)
	q.BlockSize = 32
	n, requests := w.newNode(), 0
	w.spawn("ADDs", func(a *actor) {
		c := n.claimer(a)
		c.Store = calls{c.Store.(*modelStore), &requests}
		for i := range 250 {
			if err := c.Ensure(context.Background(), q); err != nil {
				t.Error(err)
			}
			err := updateAll(c, q, func(s *blocks.State) {
				off, _ := s.Next(&q.Range)
				s.Used[off] = blocks.Use{ContainerID: fmt.Sprint(i)}
				if unused := len(s.Unused()); blocks.High(unused, q.BlockSize) {
					t.Errorf("%d addresses are unused", unused)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	w.run()
	if requests > 20 { // with blocks of 32 only there are 26
		t.Errorf("%d requests", requests)
	}
}

func calmWorld(t *testing.T) *world {
	return &world{
		t: t, rnd: rand.New(rand.NewPCG(1, 1)), calm: true, pools: map[string]*pool.Object{}, version: map[string]int{}, gone: map[string]bool{},
		owner: map[netip.Addr]string{}, now: time.Now(), reservations: map[string]string{},
	}
}

// heldBack is a store whose changes arrive later.
type heldBack struct {
	*modelStore
	late *[]func()
}

func (s heldBack) Change(_ context.Context, name string, c pool.Change) (*pool.Object, error) {
	*s.late = append(*s.late, func() { apply(&c, s.w.pools[name].Allocations) })
	return nil, ErrUnavailable
}

// A node lets an address rest, its request is under way, and the pod comes back to the node. When the request arrives, it
// does not free the address for another node.
func TestLateRest(t *testing.T) {
	t.Parallel()
	w := calmWorld(t)
	q := request("10.0.0.0/29", false)
	q.Hold = pool.HoldFor(pool.HeldPod, "ns", "web-0", "net1")
	here, there := w.newNode(), w.newNode()
	there.id.Name, there.id.Machine = "n1", "00000001"
	there.identify()
	ctx := context.Background()
	do := func(n *modelNode, f func(c *Claimer)) {
		w.spawn(n.id.Name, func(a *actor) { f(n.claimer(a)) })
		w.run()
	}
	ensure := func(n *modelNode) (err error) {
		do(n, func(c *Claimer) { err = c.Ensure(ctx, q) })
		return err
	}
	change := func(f func(s *blocks.State)) {
		do(here, func(c *Claimer) {
			if err := updateAll(c, q, f); err != nil {
				t.Error(err)
			}
		})
	}
	if err := ensure(here); err != nil {
		t.Fatal(err)
	}
	change(func(s *blocks.State) {
		off, _ := s.Held(q.Hold)
		s.Used[off] = blocks.Use{ContainerID: "a"}
		s.Release("a", "")
	})
	var late []func()
	do(here, func(c *Claimer) {
		c.Store = heldBack{c.Store.(*modelStore), &late}
		if err := c.Release(ctx, q); !errors.Is(err, ErrUnavailable) {
			t.Errorf("the release of a store that does not answer: %v", err)
		}
	})
	if err := ensure(here); err != nil {
		t.Fatal(err)
	}
	change(func(s *blocks.State) {
		off, _ := s.Held(q.Hold)
		s.Used[off] = blocks.Use{ContainerID: "b"}
	})
	if len(late) != 1 {
		t.Fatalf("%d requests are under way", len(late))
	}
	late[0]()
	if err := ensure(there); !errors.As(err, new(*HeldError)) {
		t.Errorf("another node while the pod runs: %v", err)
	}
}

// What stands in an overlapping pool for a kept address stays while a pod has the address, also when its owner is gone. A late
// request to remove what stood there does not fit what stands there now.
func TestMirrorOfHold(t *testing.T) {
	t.Parallel()
	w := calmWorld(t)
	small, large := request("10.0.0.0/29", true), request("10.0.0.0/28", true)
	small.Hold, small.Wanted = pool.HoldFor(pool.HeldPod, "ns", "web-0", "net1"), netip.MustParseAddr("10.0.0.3")
	w.create(large.Pool, large.Range.CIDR.String())
	here := w.newNode()
	w.nodes = append(w.nodes, here)
	there := w.newNode()
	ctx := context.Background()
	do := func(n *modelNode, f func(c *Claimer) error) {
		t.Helper()
		w.spawn(n.id.Name, func(a *actor) {
			if err := f(n.claimer(a)); err != nil {
				t.Error(err)
			}
		})
		w.run()
	}
	mirror := func() string { return w.pools[large.Pool].Allocations["3"].ID }

	do(here, func(c *Claimer) error { return c.Ensure(ctx, small) })
	first := mirror()
	w.gone[small.Hold] = true // deleted by force: the pod runs
	do(there, func(c *Claimer) error { return freeGone(c, large) })
	if first == "" || mirror() != first {
		t.Fatalf("the entry %q became %q", first, mirror())
	}

	delete(w.pools[small.Pool].Allocations, "3")
	var late []func()
	do(there, func(c *Claimer) error {
		c.Store = heldBack{c.Store.(*modelStore), &late}
		if err := freeGone(c, large); !errors.Is(err, ErrUnavailable) {
			t.Errorf("the request is not under way: %v", err)
		}
		return nil
	})
	delete(w.gone, small.Hold)
	do(here, func(c *Claimer) error {
		if err := c.TakeUp(ctx, small); err != nil {
			return err
		}
		return c.Ensure(ctx, small)
	})
	again := mirror()
	for _, f := range late {
		f()
	}
	if len(late) != 1 || again == first || mirror() != again {
		t.Errorf("%d late requests; the entry %q became %q, and then %q", len(late), first, again, mirror())
	}
}
