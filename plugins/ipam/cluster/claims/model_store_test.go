// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// modelStore is the store as one process sees it.
type modelStore struct {
	w *world
	a *actor
}

func (s *modelStore) Place() string { return "model" }

// do makes a request.
func (s *modelStore) do(f func() error) error {
	switch s.w.step(s.a) {
	case killBefore:
		panic(killed{})
	case killBehind:
		_ = f()
		panic(killed{})
	case loseRequest:
		return ErrUnavailable
	case loseAnswer:
		_ = f()
		return ErrUnavailable
	case delay:
		s.w.late = append(s.w.late, func() { _ = f() })
		return ErrUnavailable
	}
	return f()
}

func (s *modelStore) Get(_ context.Context, name string) (o *pool.Object, err error) {
	return o, s.do(func() error {
		o = clone(s.w.pools[name])
		return nil
	})
}

func clone(o *pool.Object) *pool.Object {
	if o == nil {
		return nil
	}
	return &pool.Object{Name: o.Name, UID: o.UID, Range: o.Range, Allocations: maps.Clone(o.Allocations)}
}

func (s *modelStore) List(context.Context) (out []pool.Object, err error) {
	err = s.do(func() error {
		out = nil
		for _, name := range slices.Sorted(maps.Keys(s.w.pools)) {
			out = append(out, *clone(s.w.pools[name]))
		}
		return nil
	})
	return out, err
}

func (s *modelStore) Create(_ context.Context, name, cidr string) error {
	return s.do(func() error {
		s.w.create(name, cidr)
		return nil
	})
}

func (w *world) create(name, cidr string) {
	if w.pools[name] == nil {
		w.pools[name] = &pool.Object{Name: name, UID: fmt.Sprint("uid of step ", w.steps), Range: cidr, Allocations: map[string]pool.Entry{}}
	}
}

func (s *modelStore) Change(_ context.Context, name string, c pool.Change) (after *pool.Object, err error) {
	err = s.do(func() error {
		o := s.w.pools[name]
		if o == nil || c.Range != "" && c.Range != o.Range || !apply(&c, o.Allocations) {
			return ErrConflict
		}
		s.w.version[name]++
		after = clone(o)
		return nil
	})
	if s.w.mute { // a store that does not say
		after = nil
	}
	return after, err
}

func (s *modelStore) Slice(context.Context, string, string) (string, error) { return "", nil }

func (s *modelStore) SliceNodes(context.Context) (map[string]bool, error) {
	return map[string]bool{}, nil
}

func (s *modelStore) NodeName(_ context.Context, n blocks.Node) (name string, err error) {
	return n.Name, s.do(func() error { return nil })
}

func (s *modelStore) Dead(_ context.Context, ids []pool.NodeID) (map[pool.NodeID]bool, error) {
	dead := map[pool.NodeID]bool{}
	return dead, s.do(func() error {
		for _, id := range ids {
			dead[id] = slices.ContainsFunc(s.w.nodes, func(n *modelNode) bool { return n.gone && n.id.Name == id.Node })
		}
		return nil
	})
}

func (s *modelStore) Gone(_ context.Context, h pool.Hold) (gone bool, err error) {
	return gone, s.do(func() error {
		gone = s.w.gone[h.Owner]
		return nil
	})
}

func (s *modelStore) Reservations(context.Context) (out map[string]string, err error) {
	err = s.do(func() error {
		out = maps.Clone(s.w.reservations)
		return nil
	})
	return out, err
}

func (s *modelStore) Reserve(_ context.Context, name, podRef, _ string) error {
	return s.do(func() error {
		if by, ok := s.w.reservations[name]; ok && by != podRef {
			return ErrConflict
		}
		s.w.reservations[name] = podRef
		return nil
	})
}

func (s *modelStore) Unreserve(_ context.Context, pods map[string]string) error {
	return s.do(func() error {
		maps.DeleteFunc(s.w.reservations, func(name, podRef string) bool { return pods[name] == podRef })
		return nil
	})
}

// apply makes the change in memory. It reports false, and changes nothing, if a condition does not hold.
func apply(c *pool.Change, allocations map[string]pool.Entry) bool {
	for off := range c.Add {
		if _, ok := allocations[pool.Key(off)]; ok {
			return false
		}
	}
	for off, e := range c.Remove {
		if have, ok := allocations[pool.Key(off)]; !ok || have != e {
			return false
		}
	}
	for off, e := range c.Replace {
		if have, ok := allocations[pool.Key(off)]; !ok || have != e[0] {
			return false
		}
	}
	for off := range c.Remove {
		delete(allocations, pool.Key(off))
	}
	for off, e := range c.Add {
		allocations[pool.Key(off)] = e
	}
	for off, e := range c.Replace {
		allocations[pool.Key(off)] = e[1]
	}
	return true
}

func TestChangeIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	a, b := pool.Entry{ID: "a"}, pool.Entry{ID: "b"}
	have := map[string]pool.Entry{"1": a, "2": b}
	for _, c := range []pool.Change{
		{Add: map[uint64]pool.Entry{3: a, 2: a}},
		{Add: map[uint64]pool.Entry{3: a}, Remove: map[uint64]pool.Entry{1: b}},
		{Add: map[uint64]pool.Entry{3: a}, Remove: map[uint64]pool.Entry{4: b}},
		{Add: map[uint64]pool.Entry{3: a}, Replace: map[uint64][2]pool.Entry{1: {b, a}}},
	} {
		if apply(&c, have) || len(have) != 2 {
			t.Errorf("%+v: %v", c, have)
		}
	}
	c := pool.Change{Add: map[uint64]pool.Entry{3: a}, Remove: map[uint64]pool.Entry{1: a}, Replace: map[uint64][2]pool.Entry{2: {b, a}}}
	if !apply(&c, have) {
		t.Error("refused")
	}
	if diff := cmp.Diff(map[string]pool.Entry{"2": a, "3": a}, have); diff != "" {
		t.Error(diff)
	}
}
