// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// catchUp reads the pool and brings the node's file in line with it.
func (o *operation) catchUp(ctx context.Context) error {
	_, taken, err := o.pools.read(ctx)
	if err != nil {
		return err
	}
	return o.reconcile(ctx, &view{own: taken})
}

// reconcile brings the node's file and the store together before anything new is asked for: after a
// reboot, after a kill between a request and its answer, and after the store lost what the file
// has. v is the pool, and is as the pool is then.
func (o *operation) reconcile(ctx context.Context, v *view) error {
	s := &o.file.state
	if s.CIDR.IsValid() && s.CIDR != o.q.Range.CIDR {
		return &ObjectError{fmt.Errorf("%s: the node's file has the range %s, the configuration %s; remove the file when no pod uses the pool",
			blocks.Path(o.file.dir, o.file.place, o.q.Pool), s.CIDR, o.q.Range.CIDR)}
	}
	if !s.Current(o.c.Node) {
		return o.reboot(ctx, v)
	}
	arrived := false
	err := o.file.update(ctx, withUses, func(s *blocks.State) {
		dropLost(o.c.Log, s, v.own)
		s.Forget(slices.DeleteFunc(slices.Clone(s.Resting), func(c blocks.Claim) bool { return hasEntry(v.own, c) }))
		arrived = slices.ContainsFunc(s.Trying, func(c blocks.Claim) bool { return hasEntry(v.own, c) })
	})
	if err != nil {
		return err
	}
	// A request of an earlier boot may have arrived since this one began.
	renamed, change := rename(o.c.Node, s.Node, v.own, func(id pool.NodeID, _ string) bool { return earlier(o.c.Node, s.Node, id) })
	switch {
	case !change.Empty():
		err = o.try(ctx, renamed, change, func(*blocks.State) {})
	case arrived:
		err = o.confirm(ctx, nil)
	}
	if err != nil {
		return err
	}
	return o.give(ctx)
}

// hasEntry reports whether the pool has an entry of the claim.
func hasEntry(taken map[uint64]pool.Entry, c blocks.Claim) bool {
	return slices.ContainsFunc(c.Offsets(), func(off uint64) bool { return taken[off].ID == c.ID })
}

// reboot takes up the state in a new boot, or on a node without a file. No pod of an earlier boot
// lives, so all that this machine claimed then is free for it. The entries get an ID of this boot,
// in one change: what an earlier boot asked for and is still under way fits none of them.
func (o *operation) reboot(ctx context.Context, v *view) error {
	name, err := o.c.Store.NodeName(ctx, o.c.Node)
	if err != nil {
		return err
	}
	if name == "" {
		name = unknownMark + o.c.Node.Name
	}
	var renamed blocks.Claim
	var change pool.Change
	var obj *pool.Object
	again := false
	err = o.c.retry(ctx, func() (err error) {
		if again {
			if _, v.own, err = o.pools.read(ctx); err != nil {
				return err
			}
		}
		again = true
		err = o.file.update(ctx, withUses, func(s *blocks.State) {
			mine := o.idsInFile(s, name)
			renamed, change = rename(o.c.Node, name, v.own, func(id pool.NodeID, text string) bool { return mine[text] || earlier(o.c.Node, name, id) })
			if len(renamed.Runs) > 0 {
				s.Machine = o.c.Node.Machine
				s.Try(renamed)
			}
		})
		if err == nil && !change.Empty() {
			obj, err = o.pools.change(ctx, o.q.Pool, change)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = o.file.update(ctx, withUses, func(s *blocks.State) {
		s.Begin(o.c.Node, name, o.q.Range.CIDR, o.q.Network)
		if len(renamed.Runs) > 0 {
			s.Try(renamed)
		}
	})
	if err != nil || change.Empty() {
		return err
	}
	if err := o.confirm(ctx, obj); err != nil {
		return err
	}
	_, v.own, err = o.pools.read(ctx)
	return err
}

// rename returns a change that gives the chosen entries an ID of this boot, and the claim with that
// ID. What pods of an earlier boot had for an owner is the owner's again.
func rename(node blocks.Node, name string, taken map[uint64]pool.Entry, chosen func(id pool.NodeID, text string) bool) (blocks.Claim, pool.Change) {
	claim, change := blocks.Claim{ID: newID(node, name)}, pool.Change{Replace: map[uint64][2]pool.Entry{}}
	var offsets []uint64
	for off, e := range taken {
		if id, ok := pool.ParseNodeID(e.ID); ok && chosen(id, e.ID) {
			change.Replace[off] = [2]pool.Entry{e, {ID: claim.ID}}
			offsets = append(offsets, off)
		}
		if h, ok := pool.ParseHold(e.ID); ok && h.Taken() && earlier(node, name, h.Node) { // no pod of then has it
			change.Replace[off] = [2]pool.Entry{e, AtRest(h)}
		}
	}
	claim.Runs = blocks.Runs(offsets)
	return claim, change
}

// earlier reports whether this machine made the entry in an earlier boot, for the pool that has it.
func earlier(node blocks.Node, name string, id pool.NodeID) bool {
	return id.Node == name && id.Machine == node.Machine && id.Boot != node.Boot && !id.IsMirror()
}

// idsInFile returns the IDs of the file, if it is this machine's. Another machine's is emptied: the
// disk was moved or copied.
func (o *operation) idsInFile(s *blocks.State, name string) map[string]bool {
	ids := map[string]bool{}
	switch s.Machine {
	case o.c.Node.Machine:
		for _, claim := range slices.Concat(s.Claims, s.Trying, s.Giving) {
			ids[claim.ID] = true
		}
	case "":
	default:
		o.c.Log.Warn("the node's file is another machine's, and is not used", log.String("pool", o.q.Pool))
		s.Begin(o.c.Node, name, o.q.Range.CIDR, o.q.Network)
		s.Boot = "" // not before the change is done
	}
	return ids
}
