// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// whereabouts reserves the address of a pod over all pools of the network, by an object for each address. It makes that behind the entry in
// the pool. Claims of nodes need none: they have entries in every pool that overlaps.

// reservedNow returns what is reserved for pods, as if the pool had entries for them, of addresses without one. whereabouts gives such an
// address to no other pod. The node remembers it for aloneFor: with the address, whereabouts writes an entry first.
func (c *Claimer) reservedNow(ctx context.Context, q *Request, own map[uint64]pool.Entry) (map[uint64]pool.Entry, error) {
	m := c.recall(q.Pool)
	if !c.within(m.ReservedSeen, aloneFor) {
		began := c.now()
		all, err := c.Store.Reservations(ctx)
		if err != nil {
			return nil, err
		}
		m.ReservedSeen, m.Reserved = began, map[uint64]string{}
		for name, podRef := range all {
			a, ok := pool.ReservedAddr(q.Network, name)
			if !ok {
				continue
			}
			off, ok := pool.Offset(q.Range.CIDR, a)
			if _, taken := own[off]; ok && !taken {
				m.Reserved[off] = podRef
			}
		}
		c.keepMind(q.Pool, &m)
	}
	out := make(map[uint64]pool.Entry, len(m.Reserved))
	for off, podRef := range m.Reserved {
		out[off] = pool.Entry{PodRef: podRef}
	}
	return out, nil
}

// reserve makes the reservations of pods to which a change of a pool gives entries. It takes those out of the change whose address is
// reserved for another pod, and returns them as an error.
func (c *Claimer) reserve(ctx context.Context, q *Request, change *pool.Change) error {
	if !q.Overlapping {
		return nil
	}
	var errs []error
	for off, e := range change.Replace {
		a, _ := pool.Addr(q.Range.CIDR, off)
		err := c.Store.Reserve(ctx, pool.ReservationName(q.Network, a), e[1].PodRef, e[1].IfName)
		if errors.Is(err, ErrConflict) {
			delete(change.Replace, off)
			errs = append(errs, fmt.Errorf("pool %s: %s stays this node's: %w", q.Pool, a, err))
			continue
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// Unreserve removes the reservations that whereabouts made for pods whose addresses are the node's by now: nothing else would remove them.
func (c *Claimer) Unreserve(ctx context.Context, q *Request) error {
	f, err := c.openAll(ctx, q)
	if err != nil {
		return err
	}
	pods := map[string]string{}
	for off, u := range f.Used {
		if _, owned := f.Owns(off); owned && u.PodRef != "" {
			a, _ := pool.Addr(q.Range.CIDR, off)
			pods[pool.ReservationName(q.Network, a)] = u.PodRef
		}
	}
	f.Close()
	if len(pods) == 0 {
		return nil
	}
	return c.Store.Unreserve(ctx, pods)
}

// Forget removes what whereabouts allocated for the attachments that stand under Owed, all of them in one change. What the store does not
// do now stays there, and upkeep does it later.
func (c *Claimer) Forget(ctx context.Context, q *Request) error {
	err := c.forget(ctx, q)
	if err == nil {
		return nil
	}
	return errors.Join(err, c.jot(context.WithoutCancel(ctx), q, c.failed))
}

// forget is Forget for upkeep, which notes a failure itself.
func (c *Claimer) forget(ctx context.Context, q *Request) error {
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	owed := f.Owed
	f.Close()
	if len(owed) == 0 {
		return nil
	}
	if err := c.removeOwed(ctx, q, owed); err != nil {
		return err
	}
	return c.jot(ctx, q, func(s *blocks.State) { s.Paid(owed) })
}

// removeOwed removes the reservations before the entries: an entry that is still there says what is left to do. A pod of the same name may
// take the entry over in between, and takes the reservation for its own, so it gets one again.
func (c *Claimer) removeOwed(ctx context.Context, q *Request, owed []blocks.Owed) error {
	unreserved := map[uint64]pool.Entry{}
	for n := 0; n < tries; n++ {
		o, err := c.Store.Get(ctx, q.Pool)
		if err != nil || o == nil {
			return err
		}
		taken, err := checked(o, q.Range.CIDR)
		if err != nil {
			return err
		}
		change := pool.Change{Remove: owedEntries(taken, owed)}
		if err := c.restore(ctx, q, taken, unreserved, change.Remove); err != nil {
			return err
		}
		if change.Empty() {
			return nil
		}
		pods := map[string]string{}
		for off, e := range change.Remove {
			a, _ := pool.Addr(q.Range.CIDR, off)
			pods[pool.ReservationName(q.Network, a)], unreserved[off] = e.PodRef, e
		}
		if err := c.Store.Unreserve(ctx, pods); err != nil {
			return err
		}
		if _, err = c.change(ctx, q.Pool, change); err == nil || !errors.Is(err, ErrConflict) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
	return fmt.Errorf("release in pool %s: %w", q.Pool, ErrConflict)
}

// owedEntries returns the entries of attachments whose DEL the node had.
func owedEntries(taken map[uint64]pool.Entry, owed []blocks.Owed) map[uint64]pool.Entry {
	gone := map[blocks.Owed]bool{}
	for _, o := range owed {
		gone[o], gone[blocks.Owed{ContainerID: o.ContainerID}] = true, true // old entries have no interface
	}
	out := map[uint64]pool.Entry{}
	for off, e := range taken {
		if gone[blocks.Owed{ContainerID: e.ID, IfName: e.IfName}] {
			out[off] = e
		}
	}
	return out
}

// restore reserves addresses again that a later pod of the same name has by now.
func (c *Claimer) restore(ctx context.Context, q *Request, taken, unreserved, still map[uint64]pool.Entry) error {
	for off, before := range unreserved {
		e := taken[off]
		if _, ours := still[off]; ours || e.PodRef == "" || e.PodRef != before.PodRef {
			continue
		}
		a, _ := pool.Addr(q.Range.CIDR, off)
		if err := c.Store.Reserve(ctx, pool.ReservationName(q.Network, a), e.PodRef, e.IfName); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
		delete(unreserved, off)
	}
	return nil
}
