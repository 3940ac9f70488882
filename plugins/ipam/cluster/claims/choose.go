// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// fewNodes is how many nodes a pool is expected to serve at least.
const fewNodes = 4

// chooseWanted returns the offset of the address that is asked for.
func (o *operation) chooseWanted(v *view) ([]uint64, error) {
	cidr, wanted := o.q.Range.CIDR, o.q.Wanted
	off, ok := pool.Offset(cidr, wanted)
	if !ok {
		return nil, fmt.Errorf("%s is not in %s", wanted, cidr)
	}
	e, taken := v.own[off]
	if !taken {
		e, taken = v.elsewhere[off]
	}
	if taken {
		return nil, &FullError{Pool: o.q.Pool, Range: cidr.String(), Wanted: wanted.String(), WantedOfOwner: e.Holder()}
	}
	return []uint64{off}, nil
}

// chooseBlock picks the offsets of the next claim of at most that size: less when few addresses are left, one when the pool is nearly full.
// Addresses are scarce if it is less than half a block.
func (o *operation) chooseBlock(v *view, size int, self string) (offsets []uint64, scarce bool, err error) {
	r := &o.q.Range
	taken, used := make(map[uint64]bool, len(v.own)), uint64(0)
	for _, entries := range []map[uint64]pool.Entry{v.own, v.elsewhere} {
		for off := range entries {
			if !taken[off] && r.Dynamic(off) {
				used++
			}
			taken[off] = true
		}
	}
	total := r.Size()
	free := total - min(used, total)
	nodes := maps.Clone(v.nodes)
	nodes[o.key(self)] = true
	parts := 2 * max(fewNodes, len(nodes))
	if o.c.backoff(o.q.Pool) > 0 { // a change is dearer than addresses that lie idle
		parts /= 2
	}
	n := int(min(uint64(size), max(1, free/uint64(parts))))
	scarce = n < (o.q.BlockSize+1)/2
	if offsets = o.share(v.nodes, taken, self, n); len(offsets) > 0 {
		return offsets, scarce, nil
	}
	all := maps.Clone(v.own)
	maps.Copy(all, v.elsewhere)
	return nil, true, &FullError{
		Pool: o.q.Pool, Range: fmt.Sprintf("%s (%s-%s)", r.CIDR, r.First, r.Last), Size: total, Used: used,
		Holders: pool.Holders(all, 3), Lent: len(nodes) > 1,
	}
}

// share returns the first free addresses of this node's part of what is free. Each node that has some has such a part, in the
// order of their names, so nodes that claim at a time rarely ask for the same. A new node begins anywhere.
func (o *operation) share(nodes map[string]bool, taken map[uint64]bool, self string, n int) []uint64 {
	r := &o.q.Range
	first, _, _ := r.Bounds()
	free := r.Choose(taken, first, max(4096, 4*len(taken)))
	if len(free) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(nodes))
	i, known := slices.BinarySearch(names, o.key(self))
	begin := i * len(free) / max(1, len(names))
	switch {
	case r.Lowest:
		begin = 0
	case !known:
		begin = int(o.c.random() * float64(len(free)))
		begin -= begin % max(1, o.q.BlockSize)
	}
	n = min(n, len(free))
	return append(slices.Clone(free[begin:min(begin+n, len(free))]), free[:max(0, begin+n-len(free))]...)
}

// key is this node as pool.Nodes has it.
func (o *operation) key(self string) string {
	return pool.NodeID{Node: self, Machine: o.c.Node.Machine}.Key()
}

// isScarce reports whether a claim gets less than half a block.
func (o *operation) isScarce(taken map[uint64]pool.Entry) bool {
	_, scarce, err := o.chooseBlock(&view{own: taken, nodes: pool.Nodes(taken)}, o.q.BlockSize, o.c.Node.Name)
	return scarce || err != nil
}
