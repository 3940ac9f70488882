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

// claimHeld makes the address usable here that the pool keeps for an owner, or begins to keep one.
func (c *Claimer) claimHeld(ctx context.Context, q *Request, taken map[uint64]pool.Entry) error {
	off, found, err := c.kept(ctx, q, taken)
	if err != nil {
		return err
	}
	if found {
		h, _ := pool.ParseHold(taken[off].ID)
		return c.attach(ctx, q, off, h)
	}
	one := *q
	one.BlockSize = 1
	offsets, _, err := c.pick(ctx, &one, taken, "")
	if errors.As(err, new(*FullError)) { // of what the node has for any pod, one is enough
		return c.spareOne(ctx, q, err)
	}
	if err != nil {
		return err
	}
	return c.attach(ctx, q, offsets[0], pool.Hold{})
}

// kept returns the offset that the pool keeps for the owner. There are two if a request came late: the one that a node has,
// or that is wanted, or the first, stays.
func (c *Claimer) kept(ctx context.Context, q *Request, taken map[uint64]pool.Entry) (best uint64, found bool, err error) {
	extra := pool.Change{Remove: map[uint64]pool.Entry{}}
	wanted, _ := pool.Offset(q.Range.CIDR, q.Wanted)
	for _, off := range slices.Sorted(maps.Keys(taken)) {
		h, ok := pool.ParseHold(taken[off].ID)
		a, _ := pool.Addr(q.Range.CIDR, off)
		if !ok || h.IsMirror() || !sameObject(h.Owner, q.Hold) || q.Range.Refuses(a) != "" { // the configuration may have changed
			continue
		}
		if h.Owner != q.Hold {
			return 0, false, &FullError{Pool: q.Pool, Range: q.Range.CIDR.String(), Wanted: a.String(), WantedOfOwner: taken[off].Holder()}
		}
		loser := off
		if !found || h.Taken() || off == wanted {
			loser, best = best, off
		}
		if l, _ := pool.ParseHold(taken[loser].ID); found && !l.Taken() && !l.Shared() { // a shared one may be in use
			extra.Remove[loser] = taken[loser]
		}
		found = true
	}
	if extra.Empty() {
		return best, found, nil
	}
	_, err = c.change(ctx, q.Pool, extra)
	return best, found, err
}

// sameObject reports whether two owners are one object of the cluster. An IPAMClaim is kept for a virtual machine or for
// other pods, never for both.
func sameObject(a, b string) bool {
	ka, na := pool.Hold{Owner: a}.Kind()
	kb, nb := pool.Hold{Owner: b}.Kind()
	if ka == pool.HeldPod || kb == pool.HeldPod {
		return a == b
	}
	return slices.Equal(na[:2], nb[:2])
}

// attach enters this node as the one whose pod has the address. old is what the pool keeps, or the zero value.
func (c *Claimer) attach(ctx context.Context, q *Request, off uint64, old pool.Hold) error {
	f, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	here := pool.NodeID{Node: f.Node, Machine: c.Node.Machine, Boot: c.Node.Boot}
	// What rests here is taken back under another ID: the request to let it rest may be under way.
	resting := slices.ContainsFunc(f.Resting, func(r blocks.Claim) bool { return r.ID == old.String() })
	f.Close()
	if old.Taken() && !resting {
		if old.Node.Machine != here.Machine || old.Node.Boot == here.Boot {
			dead, err := c.isDead(ctx, old.Node)
			if err != nil {
				return err
			}
			if !dead {
				return c.heldError(q, off, old)
			}
		}
	}
	next := pool.Hold{Owner: q.Hold, Nonce: nonce(), Node: here}
	switch {
	case next.Shared() && old.Owner != "": // nothing changes in the store
		return c.attachShared(ctx, q, off, old)
	case next.Shared():
		next.Node = pool.NodeID{}
	}
	claim := blocks.Claim{ID: next.String(), Runs: blocks.Runs([]uint64{off}), Hold: q.Hold}
	err = c.jot(ctx, q, func(s *blocks.State) { s.Try(claim) })
	if err != nil {
		return err
	}
	change := pool.Change{Add: map[uint64]pool.Entry{off: {ID: claim.ID}}}
	if old.Owner != "" {
		change = pool.Change{Replace: map[uint64][2]pool.Entry{off: {{ID: old.String()}, {ID: claim.ID}}}}
	}
	return c.request(ctx, q, claim.ID, change)
}

// attachShared makes an address usable that other nodes may have as well.
func (c *Claimer) attachShared(ctx context.Context, q *Request, off uint64, h pool.Hold) error {
	err := c.update(ctx, q, func(s *blocks.State) error {
		s.Claims = append(s.Claims, blocks.Claim{ID: h.String(), Runs: blocks.Runs([]uint64{off}), Hold: h.Owner})
		return nil
	})
	if err != nil {
		return err
	}
	return c.confirm(ctx, q)
}

func (c *Claimer) heldError(q *Request, off uint64, h pool.Hold) error {
	a, _ := pool.Addr(q.Range.CIDR, off)
	return &HeldError{Pool: q.Pool, Address: a.String(), Holder: pool.Entry{ID: h.String()}.Holder()}
}

// spareOne gives one unused address of this node back, or the one that is wanted, so that it can be kept for the owner.
// full is returned if the node has none.
func (c *Claimer) spareOne(ctx context.Context, q *Request, full error) error {
	some := false
	err := c.releaseSome(ctx, q, func(unused []uint64) []uint64 {
		if wanted, ok := pool.Offset(q.Range.CIDR, q.Wanted); q.Wanted.IsValid() && ok {
			unused = slices.DeleteFunc(unused, func(off uint64) bool { return off != wanted })
		} else {
			unused = slices.DeleteFunc(unused, func(off uint64) bool { return !q.Range.Dynamic(off) })
		}
		some = len(unused) > 0
		return unused[:min(1, len(unused))]
	})
	if err != nil || some {
		return errors.Join(err, ErrConflict)
	}
	return full
}

// rest tells the store that no pod of this node has the addresses any more that it keeps for their owners.
func (c *Claimer) rest(ctx context.Context, q *Request) error {
	for n := 0; n < tries; n++ {
		resting, err := c.resting(ctx, q)
		if err != nil || len(resting) == 0 {
			return err
		}
		_, taken, err := c.read(ctx, q)
		if err != nil {
			return err
		}
		change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
		for _, claim := range stillThere(resting, taken) {
			off := claim.Runs[0][0]
			change.Replace[off] = [2]pool.Entry{{ID: claim.ID}, AtRest(pool.Hold{Owner: claim.Hold})}
		}
		if !change.Empty() {
			_, err = c.change(ctx, q.Pool, change)
		}
		if err == nil {
			return c.update(ctx, q, func(s *blocks.State) error {
				s.Forget(resting)
				return nil
			})
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
	return fmt.Errorf("let addresses of pool %s rest: %w", q.Pool, ErrConflict)
}

// resting returns what the store may have for pods of this node that are not there.
func (c *Claimer) resting(ctx context.Context, q *Request) ([]blocks.Claim, error) {
	f, err := c.openAll(ctx, q)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !f.Idle() {
		return nil, nil
	}
	f.RestIdle()
	return f.Resting, f.Save()
}

// stillThere returns the claims of one address that the store has.
func stillThere(claims []blocks.Claim, taken map[uint64]pool.Entry) []blocks.Claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c blocks.Claim) bool { return len(c.Runs) == 0 || taken[c.Runs[0][0]].ID != c.ID })
}

// verdicts are what the store has said of nodes and owners, asked for once.
type verdicts struct {
	c    *Claimer
	dead map[pool.NodeID]bool // of ask
	gone map[string]bool
	list []pool.Object
}

// free reports whether no pod has the entry any more: its node is gone, or its owner is, and no node has it for a pod.
func (x *verdicts) free(ctx context.Context, q *Request, off uint64, e pool.Entry) (bool, error) {
	if id, ok := boot(e); ok && !x.dead[id] {
		return false, nil
	}
	if _, ok := pool.ParseNodeID(e.ID); ok {
		return true, nil
	}
	h, ok := pool.ParseHold(e.ID)
	if !ok {
		return false, nil
	}
	if h.IsMirror() { // it does not say whether a pod has the address still
		return x.stale(ctx, q, off, h)
	}
	gone, known := x.gone[h.Owner]
	if !known {
		var err error
		if gone, err = x.c.Store.Gone(ctx, h); err != nil {
			return false, err
		}
		x.gone[h.Owner] = gone
	}
	return gone, nil
}

// stale reports whether a mirror stands for a hold that is not there: the request that entered it came late.
func (x *verdicts) stale(ctx context.Context, q *Request, off uint64, h pool.Hold) (bool, error) {
	if x.list == nil {
		var err error
		if x.list, err = x.c.Store.List(ctx); err != nil {
			return false, err
		}
	}
	a, _ := pool.Addr(q.Range.CIDR, off)
	for i := range x.list {
		p, err := x.list[i].Prefix()
		if err != nil {
			continue
		}
		there, ok := pool.Offset(p, a)
		if !ok {
			continue
		}
		if o, ok := pool.ParseHold(x.list[i].Allocations[pool.Key(there)].ID); ok && o.Owner == h.Owner && !o.IsMirror() {
			return false, nil
		}
	}
	return true, nil
}

// ask asks for all nodes of the entries at once.
func (x *verdicts) ask(ctx context.Context, entries map[uint64]pool.Entry) error {
	ids := map[pool.NodeID]bool{}
	for _, e := range entries {
		if id, ok := boot(e); ok {
			ids[id] = true
		}
	}
	var err error
	x.dead, err = x.c.dead(ctx, slices.Collect(maps.Keys(ids)))
	return err
}

// boot returns the boot that has an entry for its pods, if one has.
func boot(e pool.Entry) (pool.NodeID, bool) {
	if id, ok := pool.ParseNodeID(e.ID); ok {
		id.Nonce = ""
		return id, true
	}
	h, _ := pool.ParseHold(e.ID)
	return h.Node, h.Taken()
}
