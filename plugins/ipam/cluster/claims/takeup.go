// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// takeUp brings the node's file and the store together before anything new is asked for: after a reboot, after a kill
// between a request and its answer, and after the store lost what the file has. It returns the allocations as they are
// then.
func (c *Claimer) takeUp(ctx context.Context, q *Request, taken map[uint64]pool.Entry) (map[uint64]pool.Entry, error) {
	f, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	s := f.State
	f.Close()
	if s.CIDR.IsValid() && s.CIDR != q.Range.CIDR {
		return nil, &ObjectError{fmt.Errorf("%s: the node's file has the range %s, the configuration %s; remove the file when no pod uses the pool",
			blocks.Path(c.Dir, c.Store.Place(), q.Pool), s.CIDR, q.Range.CIDR)}
	}
	if !s.Current(c.Node) {
		return c.boot(ctx, q, taken)
	}
	arrived := false
	err = c.update(ctx, q, func(s *blocks.State) error {
		c.dropLost(s, taken)
		s.Resting = stillThere(s.Resting, taken)
		for _, t := range s.Trying {
			arrived = arrived || slices.ContainsFunc(t.Offsets(), func(off uint64) bool { return taken[off].ID == t.ID })
		}
		return nil
	})
	if err == nil {
		var late bool
		late, err = c.adopt(ctx, q, taken, s.Node)
		arrived = arrived || late
	}
	if err == nil && arrived {
		err = c.confirm(ctx, q)
	}
	if err == nil {
		err = c.give(ctx, q)
	}
	return taken, err
}

// adopt takes over what a request of an earlier boot has entered since this one began. It reports whether there was any.
func (c *Claimer) adopt(ctx context.Context, q *Request, taken map[uint64]pool.Entry, node string) (bool, error) {
	change, _, err := c.rename(ctx, q, taken, node, func(id pool.NodeID, _ string) bool { return c.earlier(id, node) })
	if err != nil || change.Empty() {
		return false, err
	}
	_, err = c.change(ctx, q.Pool, change)
	return true, err
}

// earlier reports whether this machine made the entry in an earlier boot, for the pool that has it.
func (c *Claimer) earlier(id pool.NodeID, node string) bool {
	return id.Node == node && id.Machine == c.Node.Machine && id.Boot != c.Node.Boot && !isMirror(id)
}

// dropLost takes addresses out of the claims that the store does not have for this node any more. A pod that has one
// keeps it: the node cannot take it away, and another may have it now.
func (c *Claimer) dropLost(s *blocks.State, taken map[uint64]pool.Entry) {
	var lost []uint64
	for _, claim := range s.Claims {
		for _, off := range claim.Offsets() {
			if taken[off].ID != claim.ID {
				lost = append(lost, off)
			}
		}
	}
	if len(lost) == 0 {
		return
	}
	s.Drop(lost)
	for _, off := range lost {
		if u, ok := s.Used[off]; ok {
			a, _ := pool.Addr(s.CIDR, off)
			c.Log.Error("the pool gave an address away that a container of this node has", log.String("pool", s.Pool),
				log.Stringer(log.KeyAddress, a), log.String(log.KeyContainerID, u.ContainerID), log.String("now", taken[off].Holder()))
		}
	}
}

// boot takes up the state in a new boot, or on a node without a file. No pod of an earlier boot lives, so all that this
// machine claimed then is free for it. The entries get an ID of this boot, in one change: what an earlier boot asked for
// and is still under way fits none of them.
func (c *Claimer) boot(ctx context.Context, q *Request, taken map[uint64]pool.Entry) (map[uint64]pool.Entry, error) {
	name, err := c.Store.NodeName(ctx, c.Node)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = unknownMark + c.Node.Name
	}
	for n := 0; n < tries; n++ {
		mine, err := c.inFile(ctx, q, name)
		if err != nil {
			return nil, err
		}
		change, id, err := c.rename(ctx, q, taken, name, func(id pool.NodeID, text string) bool { return mine[text] || c.earlier(id, name) })
		if err != nil {
			return nil, err
		}
		if !change.Empty() {
			_, err = c.change(ctx, q.Pool, change)
		}
		if err == nil {
			err = c.update(ctx, q, func(s *blocks.State) error {
				s.Begin(c.Node, name, q.Range.CIDR, q.Network)
				if !change.Empty() {
					if offsets := renamed(change, id); len(offsets) > 0 {
						s.Try(blocks.Claim{ID: id, Runs: blocks.Runs(offsets)})
					}
				}
				return nil
			})
			if err == nil && !change.Empty() {
				err = c.confirm(ctx, q)
			}
			if err != nil || change.Empty() {
				return taken, err
			}
			_, taken, err = c.read(ctx, q)
			return taken, err
		}
		if !errors.Is(err, ErrConflict) {
			return nil, err
		}
		if err := c.pause(ctx, n); err != nil {
			return nil, err
		}
		if _, taken, err = c.read(ctx, q); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("take up pool %s: %w", q.Pool, ErrConflict)
}

// rename prepares a change that gives the chosen entries an ID of this boot, and notes the ID in the file. What pods of an
// earlier boot had for an owner is the owner's again.
func (c *Claimer) rename(ctx context.Context, q *Request, taken map[uint64]pool.Entry, name string,
	chosen func(id pool.NodeID, text string) bool) (pool.Change, string, error) {
	id := c.newID(name)
	change := pool.Change{Replace: map[uint64][2]pool.Entry{}}
	for off, e := range taken {
		if n, ok := pool.ParseNodeID(e.ID); ok && chosen(n, e.ID) {
			change.Replace[off] = [2]pool.Entry{e, {ID: id}}
		}
		if h, ok := pool.ParseHold(e.ID); ok && h.Taken() && c.earlier(h.Node, name) { // no pod of then has it
			change.Replace[off] = [2]pool.Entry{e, AtRest(h)}
		}
	}
	offsets := renamed(change, id)
	if len(offsets) == 0 {
		return change, id, nil
	}
	return change, id, c.update(ctx, q, func(s *blocks.State) error {
		s.Machine = c.Node.Machine
		s.Try(blocks.Claim{ID: id, Runs: blocks.Runs(offsets)})
		return nil
	})
}

// renamed returns the offsets that get the ID.
func renamed(change pool.Change, id string) []uint64 {
	var out []uint64
	for off, e := range change.Replace {
		if e[1].ID == id {
			out = append(out, off)
		}
	}
	return out
}

// inFile returns the IDs of the file, if it is this machine's. Another machine's is emptied: the disk was moved or copied.
func (c *Claimer) inFile(ctx context.Context, q *Request, name string) (map[string]bool, error) {
	mine := map[string]bool{}
	return mine, c.update(ctx, q, func(s *blocks.State) error {
		if s.Machine == c.Node.Machine {
			for _, claim := range slices.Concat(s.Claims, s.Trying, s.Giving) {
				mine[claim.ID] = true
			}
		} else if s.Machine != "" {
			c.Log.Warn("the node's file is another machine's, and is not used", log.String("pool", q.Pool))
			s.Begin(c.Node, name, q.Range.CIDR, q.Network)
			s.Boot = "" // not before the change is done
		}
		return nil
	})
}

func isMirror(n pool.NodeID) bool {
	return len(n.Nonce) > 0 && n.Nonce[len(n.Nonce)-1:] == mirrorMark
}
