// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// mirrors reports whether the entry is the mirror of what is kept for an owner in another pool.
func mirrors(e pool.Entry, owner string) bool {
	h, ok := pool.ParseHold(e.ID)
	return ok && h.IsMirror() && h.Owner == owner
}

// ownMirror reports whether this machine made the entry for a claim in another pool, in this boot
// or an earlier one.
func (c *Claimer) ownMirror(e pool.Entry) bool {
	n, ok := pool.ParseNodeID(e.ID)
	return ok && n.IsMirror() && n.Machine == c.Node.Machine
}

// removeLateMirrors removes mirrors of this node whose claim is gone: the request that entered them
// came late. The list is read before the files, and a claim stands in its file before its mirrors
// are asked for.
func (o *operation) removeLateMirrors(ctx context.Context, node string) error {
	if !o.q.Overlapping || o.pools.knownNotOverlapping(o.pools.cache.UID) {
		return nil
	}
	began := o.c.now()
	list, err := o.c.Store.List(ctx)
	if err != nil {
		return err
	}
	if _, _, err := o.pools.overlapsIn(ctx, list, began); err != nil { // the next claim needs to know
		return err
	}
	known, err := o.file.mirrorsOfAll(ctx)
	if err != nil {
		return err
	}
	for _, obj := range list {
		change := pool.Change{Remove: map[uint64]pool.Entry{}}
		for key, e := range obj.Allocations {
			n, _ := pool.ParseNodeID(e.ID)
			if off, err := pool.ParseKey(key); err == nil && n.Node == node && o.c.ownMirror(e) && !known[e.ID] {
				change.Remove[off] = e
			}
		}
		if change.Empty() {
			continue
		}
		if _, err := o.pools.change(ctx, obj.Name, change); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return nil
}

// mirrorsOfAll returns the IDs of the mirrors that the claims in all files of the node may have.
func (n *nodeFile) mirrorsOfAll(ctx context.Context) (map[string]bool, error) {
	names, err := blocks.Pools(n.dir, n.place)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range names {
		f, err := blocks.OpenFor(ctx, n.dir, n.place, name, "", "")
		if err != nil {
			return nil, err
		}
		for _, claim := range slices.Concat(f.Claims, f.Trying, f.Giving) {
			known[pool.MirrorID(claim.ID)] = true
		}
		f.Close()
	}
	return known, nil
}
