// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// exchange is what a node does about allocations of whereabouts: it takes them over, gives its own
// back as such, and releases them.
//
// whereabouts reserves the address of a pod over all pools of the network, by an object for each
// address. It makes that after the entry in the pool. Claims of nodes need none: they have entries
// in every pool that overlaps.
type exchange struct{ o *operation }

// Of returns the addresses that the pool has for an attachment of whereabouts.
func (c *Claimer) Of(ctx context.Context, q *Request, containerID, ifName string) ([]uint64, error) {
	obj, err := c.Store.Get(ctx, q.Pool)
	if err != nil || obj == nil {
		return nil, err
	}
	taken, err := checked(obj, q.Range.CIDR)
	var out []uint64
	for off, e := range taken {
		if e.ID == containerID && (e.IfName == ifName || e.IfName == "") {
			out = append(out, off)
		}
	}
	return out, err
}

// Import turns allocations of pods into claims of the node that the containers use. It returns how
// many.
func (c *Claimer) Import(ctx context.Context, q *Request, chosen func(e pool.Entry) bool) (n int, err error) {
	err = c.locked(ctx, q, func(o *operation, ctx context.Context) error {
		var obj *pool.Object
		err := c.retry(ctx, func() (err error) {
			n, obj, err = (&exchange{o}).importOnce(ctx, chosen)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
		return o.confirm(ctx, obj)
	})
	return n, err
}

// importOnce is the request of Import. It returns the pool as the change has left it.
func (x *exchange) importOnce(ctx context.Context, chosen func(e pool.Entry) bool) (int, *pool.Object, error) {
	o := x.o
	_, taken, err := o.pools.read(ctx)
	if err != nil {
		return 0, nil, err
	}
	v := &view{own: taken}
	if err := o.reconcile(ctx, v); err != nil {
		return 0, nil, err
	}
	id, change := newID(o.c.Node, o.file.state.Node), pool.Change{Replace: map[uint64][2]pool.Entry{}}
	for off, e := range v.own {
		if _, node := pool.ParseNodeID(e.ID); !node && chosen(e) {
			change.Replace[off] = [2]pool.Entry{e, {ID: id}}
		}
	}
	if change.Empty() {
		return 0, nil, nil
	}
	err = o.file.update(ctx, withUses, func(s *blocks.State) {
		s.Try(blocks.Claim{ID: id, Runs: blocks.Runs(slices.Collect(maps.Keys(change.Replace)))})
		// Before the store has it, the node does not own it, and no other pod gets it.
		for off, e := range change.Replace {
			s.Used[off] = blocks.Use{ContainerID: e[0].ID, IfName: e[0].IfName, PodRef: e[0].PodRef}
		}
	})
	if err != nil {
		return 0, nil, err
	}
	obj, err := o.pools.change(ctx, o.q.Pool, change)
	if errors.Is(err, ErrConflict) {
		return 0, nil, errors.Join(err, o.file.update(ctx, withUses, func(s *blocks.State) {
			s.Refuse(id)
			for off := range change.Replace {
				delete(s.Used, off)
			}
		}))
	}
	return len(change.Replace), obj, err
}

// Export turns the addresses that containers of the node use into allocations and reservations of
// their pods, as whereabouts has them. It returns how many. The node's file forgets them.
func (c *Claimer) Export(ctx context.Context, q *Request) (n int, err error) {
	err = c.locked(ctx, q, func(o *operation, ctx context.Context) error {
		var err error
		if n, err = (&exchange{o}).export(ctx); n == 0 {
			return err
		}
		return errors.Join(err, o.removeLateMirrors(ctx, o.file.state.Node))
	})
	return n, err
}

// export changes store and file while no ADD can take an address.
func (x *exchange) export(ctx context.Context) (n int, err error) {
	o := x.o
	err = o.file.with(ctx, withUses, func(f *blocks.File) error {
		change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
		for off, u := range f.Used {
			if claim, ok := f.Owns(off); ok {
				change.Replace[off] = [2]pool.Entry{{ID: claim.ID}, {ID: u.ContainerID, PodRef: u.PodRef, IfName: u.IfName}}
			}
		}
		// The node's entries in pools that overlap go after this, and only a reservation keeps
		// whereabouts from the addresses there.
		rerr := x.reserve(ctx, &change)
		if change.Empty() || rerr != nil && !errors.Is(rerr, ErrConflict) {
			return rerr
		}
		if _, err := o.pools.change(ctx, o.q.Pool, change); err != nil {
			return err
		}
		f.Drop(slices.Collect(maps.Keys(change.Replace)))
		for off := range change.Replace {
			delete(f.Used, off)
		}
		n = len(change.Replace)
		return errors.Join(rerr, f.SaveDurably())
	})
	return n, err
}

// reserve makes the reservations of pods to which a change of a pool gives entries. It takes those
// out of the change whose address is reserved for another pod, and returns them as an error.
func (x *exchange) reserve(ctx context.Context, change *pool.Change) error {
	q := x.o.q
	if !q.Overlapping {
		return nil
	}
	var errs []error
	for off, e := range change.Replace {
		err := x.o.c.Store.Reserve(ctx, q.reservation(off), e[1].PodRef, e[1].IfName)
		if errors.Is(err, ErrConflict) {
			delete(change.Replace, off)
			a, _ := pool.Addr(q.Range.CIDR, off)
			errs = append(errs, fmt.Errorf("pool %s: %s stays this node's: %w", q.Pool, a, err))
		} else if err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// Unreserve removes the reservations that whereabouts made for pods whose addresses are the node's
// by now: nothing else would remove them.
func (c *Claimer) Unreserve(ctx context.Context, q *Request) error {
	pods := map[string]string{}
	file := c.operation(q).file
	err := file.with(ctx, withUses, func(f *blocks.File) error {
		for off, u := range f.Used {
			if _, owned := f.Owns(off); owned && u.PodRef != "" {
				pods[q.reservation(off)] = u.PodRef
			}
		}
		return nil
	})
	if err != nil || len(pods) == 0 {
		return err
	}
	return c.Store.Unreserve(ctx, pods)
}

// Forget removes what whereabouts allocated for the attachments that stand under Owed, all of them
// in one change. What the store does not do now stays there, and upkeep does it later.
func (c *Claimer) Forget(ctx context.Context, q *Request) error {
	o := c.operation(q)
	err := o.file.load(ctx)
	if err == nil {
		err = (&exchange{o}).forget(ctx)
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, o.file.update(context.WithoutCancel(ctx), stateOnly, c.countFailure))
}

// forget is Forget for upkeep, which notes a failure itself.
func (x *exchange) forget(ctx context.Context) error {
	owed := x.o.file.state.Owed
	if len(owed) == 0 {
		return nil
	}
	if err := x.removeOwed(ctx, owed); err != nil {
		return err
	}
	return x.o.file.update(ctx, stateOnly, func(s *blocks.State) { s.Paid(owed) })
}

// removeOwed removes the reservations before the entries: an entry that is still there says what is
// left to do. A pod of the same name may take the entry over in between, and takes the reservation
// for its own, so it gets one again.
func (x *exchange) removeOwed(ctx context.Context, owed []blocks.Owed) error {
	q, store := x.o.q, x.o.c.Store
	unreserved := map[uint64]pool.Entry{}
	return x.o.c.retry(ctx, func() error {
		obj, err := store.Get(ctx, q.Pool)
		if err != nil || obj == nil {
			return err
		}
		taken, err := checked(obj, q.Range.CIDR)
		if err != nil {
			return err
		}
		change := pool.Change{Remove: owedEntries(taken, owed)}
		if err := x.restore(ctx, taken, unreserved, change.Remove); err != nil {
			return err
		}
		if change.Empty() {
			return nil
		}
		pods := map[string]string{}
		for off, e := range change.Remove {
			pods[q.reservation(off)], unreserved[off] = e.PodRef, e
		}
		if err := store.Unreserve(ctx, pods); err != nil {
			return err
		}
		_, err = x.o.pools.change(ctx, q.Pool, change)
		return err
	})
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
func (x *exchange) restore(ctx context.Context, taken, unreserved, still map[uint64]pool.Entry) error {
	for off, before := range unreserved {
		e := taken[off]
		if _, owed := still[off]; owed || e.PodRef == "" || e.PodRef != before.PodRef {
			continue
		}
		err := x.o.c.Store.Reserve(ctx, x.o.q.reservation(off), e.PodRef, e.IfName)
		if err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
		delete(unreserved, off)
	}
	return nil
}

// reservation returns the name of the reservation of the address at an offset.
func (q *Request) reservation(off uint64) string {
	a, _ := pool.Addr(q.Range.CIDR, off)
	return pool.ReservationName(q.Network, a)
}

// AtRest returns the entry of a hold that no node has.
func AtRest(h pool.Hold) pool.Entry {
	return pool.Entry{ID: pool.Hold{Owner: h.Owner, Nonce: nonce()}.String()}
}
