// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// hostPortMap is what a change needs of the map of hostPorts.
type hostPortMap interface {
	Get(hostport.Key) (hostport.Entry, bool, error)
	Put(hostport.Entry) error
	Delete(hostport.Key) error
	Each(func(hostport.Entry) bool) error // reads the whole map
}

// portChange is a change of the hostPorts under the writers' lock.
//
// The waiting list has the hostPorts that another owner has taken over: one comes back when that owner goes, as a netfilter rule does that
// was below the one of a later pod. It is a file, the one that comes next last. After a kill between file and map it may have an entry that is in the map
// too. The next change of its owner repairs that.
type portChange struct {
	d       *Datapath
	m       hostPortMap
	behind  func() []uint64 // the owners that keep what they have
	alive   func(hostport.Entry) (bool, error)
	waiting waitlist
	gone    []hostport.Entry // replaced or removed
}

// changePorts begins a change.
func (d *Datapath) changePorts(m hostPortMap, behind ...func() []uint64) (*portChange, error) {
	waiting, err := d.waitlist()
	owners := sync.OnceValue(func() []uint64 { return ownersOf(behind) })
	return &portChange{d: d, m: m, behind: owners, alive: remembered(d.ownerAlive), waiting: waiting}, err
}

// ownersOf calls the functions.
func ownersOf(behind []func() []uint64) (owners []uint64) {
	for _, f := range behind {
		owners = append(owners, f()...)
	}
	return owners
}

// waiterIndex returns the place of the first of these owners who waits for a key, -1 for none.
func waiterIndex(list []hostport.Entry, k hostport.Key, owners ...uint64) int {
	return slices.IndexFunc(list, func(w hostport.Entry) bool { return w.Key == k && slices.Contains(owners, w.Owner) })
}

// forget removes the waiters that drop accepts.
func (c *portChange) forget(drop func(hostport.Entry) bool) error {
	now := slices.Clone(c.waiting.all)
	return c.waiting.set(slices.DeleteFunc(now, func(w hostport.Entry) bool {
		if !drop(w) {
			return false
		}
		c.gone = append(c.gone, w)
		return true
	}))
}

// putAll writes entries, whose keys differ. If another owner has a key, that one waits from then on. An entry that says the same
// already keeps its generation, so that its connections live on. The list is written once, before the map: a pod may publish thousands.
func (c *portChange) putAll(entries []hostport.Entry, rb *rollback.Stack) error {
	type change struct {
		now, old hostport.Entry
		had      bool
	}
	changes := make([]change, 0, len(entries))
	waiting := slices.Clone(c.waiting.all)
	for _, e := range entries {
		old, had, err := c.m.Get(e.Key)
		if err != nil {
			return fmt.Errorf("published port %s: %w", e.Key, err)
		}
		same := old
		same.Generation = e.Generation
		if had && same.Equal(e) {
			continue
		}
		if had && old.Owner != e.Owner {
			place, err := c.placeBehind(waiting, old, e)
			if err != nil {
				return err
			}
			if place >= 0 {
				waiting = slices.Insert(waiting, place, e)
				continue
			}
			waiting = append(waiting, old)
		}
		changes = append(changes, change{e, old, had})
	}
	if err := c.waiting.set(waiting); err != nil {
		return err
	}
	for _, ch := range changes {
		rb.Push("published port "+ch.now.Key.String(), func(context.Context) error {
			if ch.had {
				return c.m.Put(ch.old)
			}
			return c.m.Delete(ch.now.Key)
		})
		if err := c.m.Put(ch.now); err != nil {
			return fmt.Errorf("published port %s: %w", ch.now.Key, pintree.WrapFull("sl_hostports", err))
		}
		if ch.had {
			c.gone = append(c.gone, ch.old)
		}
	}
	return nil
}

// placeBehind returns where e comes on the list of those who wait if an attachment of behind has its key, or waits for it: after the last
// of those, as a netfilter rule does that is below theirs. -1: none does. A holder whose device has gone keeps nothing.
func (c *portChange) placeBehind(waiting []hostport.Entry, holder, e hostport.Entry) (int, error) {
	owners := c.behind()
	if place := waiterIndex(waiting, e.Key, owners...); place >= 0 {
		return place, nil
	}
	if !slices.Contains(owners, holder.Owner) {
		return -1, nil
	}
	if alive, err := c.alive(holder); !alive || err != nil {
		return -1, err
	}
	return len(waiting), nil
}

// withdrawAll removes entries from the map: the last who waits for a key has it again. It goes on after errors. The list is written
// once, after the map.
func (c *portChange) withdrawAll(entries []hostport.Entry) error {
	q := newWaitQueue(c.waiting.all, c.alive)
	var errs []error
	for _, e := range entries {
		i, err := q.next(e.Key, e.Owner)
		switch {
		case err != nil:
		case i < 0:
			err = c.m.Delete(e.Key)
		default:
			next := q.waiting[i]
			next.Generation = uint64(conntrack.Now())
			if err = c.m.Put(next); err == nil {
				q.left[i] = true
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("published port %s: %w", e.Key, err))
			continue
		}
		c.gone = append(c.gone, e)
	}
	c.gone = append(c.gone, q.dead...)
	return errors.Join(append(errs, c.waiting.set(q.rest()))...)
}

// waitQueue finds who is next for a key without a walk through all waiters.
type waitQueue struct {
	waiting []hostport.Entry
	byKey   map[hostport.Key][]int // indexes into waiting, the latest last
	left    map[int]bool
	dead    []hostport.Entry // those who left without a turn
	alive   func(hostport.Entry) (bool, error)
}

func newWaitQueue(waiting []hostport.Entry, alive func(hostport.Entry) (bool, error)) *waitQueue {
	q := &waitQueue{waiting: waiting, byKey: make(map[hostport.Key][]int, len(waiting)), left: make(map[int]bool), alive: alive}
	for i, w := range waiting {
		q.byKey[w.Key] = append(q.byKey[w.Key], i)
	}
	return q
}

// next returns the index of the last who waits for a key and is alive, -1 for none. A pod whose DEL never came may have left its address
// to another pod, which has no such hostPort: it leaves the queue. The owner who gives the key up may wait for it too, where a kill kept
// it from writing the list: it is passed over.
func (q *waitQueue) next(k hostport.Key, leaving uint64) (int, error) {
	for _, i := range slices.Backward(q.byKey[k]) {
		w := q.waiting[i]
		if w.Owner == leaving || q.left[i] {
			continue
		}
		if alive, err := q.alive(w); err != nil || alive {
			return i, err
		}
		q.left[i] = true
		q.dead = append(q.dead, w)
	}
	return -1, nil
}

// rest are those who wait still.
func (q *waitQueue) rest() []hostport.Entry {
	out := make([]hostport.Entry, 0, len(q.waiting))
	for i, w := range q.waiting {
		if !q.left[i] {
			out = append(out, w)
		}
	}
	return out
}

// remembered asks once for each pod.
func remembered(alive func(hostport.Entry) (bool, error)) func(hostport.Entry) (bool, error) {
	type pod struct {
		owner uint64
		addr  netip.Addr
	}
	known := make(map[pod]bool)
	return func(e hostport.Entry) (bool, error) {
		p := pod{e.Owner, e.PodIP}
		if is, ok := known[p]; ok {
			return is, nil
		}
		is, err := alive(e)
		if err == nil {
			known[p] = is
		}
		return is, err
	}
}

// ownerAlive reports whether the owner of e has its address still, on a device that exists. A claim has no endpoint: GC removes it when its
// attachment has gone.
func (d *Datapath) ownerAlive(e hostport.Entry) (bool, error) {
	if e.IsClaim() {
		return true, nil
	}
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return false, err
	}
	ep, ok, err := eps.Addrs.Get(e.PodIP)
	if err != nil {
		return false, fmt.Errorf("endpoint %s: %w", e.PodIP, err)
	}
	if !ok || ep.Owner != e.Owner {
		return false, nil
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return !a.Gone(int(ep.Ifindex)), nil
}

// dropUnusedLists removes the lists that no entry, no waiter and none of keep names.
func (c *portChange) dropUnusedLists(keep ...hostport.Entry) error {
	used := make(map[uint64]bool)
	for _, e := range keep {
		used[e.Allowlist] = true
	}
	for _, w := range c.waiting.all {
		used[w.Allowlist] = true
	}
	err := c.m.Each(func(e hostport.Entry) bool {
		used[e.Allowlist] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("published ports: %w", err)
	}
	lists, err := c.d.hostPortAllowlists()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	if err := lists.Keep(used); err != nil {
		return fmt.Errorf("sources of published ports: %w", err)
	}
	return nil
}
