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

// view is a pool as choose needs it.
type view struct {
	taken map[uint64]bool // in this pool, or in one that overlaps
	used  uint64          // of the addresses that the range hands out
	nodes map[string]bool // of pool.Nodes
	all   map[uint64]pool.Entry
}

func newView(q *Request, taken, elsewhere map[uint64]pool.Entry) *view {
	v := &view{taken: make(map[uint64]bool, len(taken)), nodes: pool.Nodes(taken), all: taken}
	for off := range taken {
		v.take(q, off)
	}
	if len(elsewhere) > 0 {
		v.all = maps.Clone(elsewhere)
		maps.Copy(v.all, taken)
	}
	for off := range elsewhere {
		v.take(q, off)
	}
	return v
}

func (v *view) take(q *Request, off uint64) {
	if !v.taken[off] && q.Range.Dynamic(off) {
		v.used++
	}
	v.taken[off] = true
}

// choose picks the offsets of the next claim: a block, less when few are left, one when the pool is nearly full.
func (c *Claimer) choose(q *Request, v *view, self string) (offsets []uint64, scarce bool, err error) {
	r := &q.Range
	if q.Wanted.IsValid() {
		off, ok := pool.Offset(r.CIDR, q.Wanted)
		if !ok {
			return nil, false, fmt.Errorf("%s is not in %s", q.Wanted, r.CIDR)
		}
		if e, ok := v.all[off]; ok {
			return nil, false, &FullError{Pool: q.Pool, Range: r.CIDR.String(), Wanted: q.Wanted.String(), WantedOfOwner: e.Holder()}
		}
		return []uint64{off}, false, nil
	}
	size := r.Size()
	free := size - min(v.used, size)
	nodes := maps.Clone(v.nodes)
	nodes[pool.NodeID{Node: self, Machine: c.Node.Machine}.Key()] = true
	parts := 2 * max(fewNodes, len(nodes))
	if c.turn(q.Pool) > 0 { // a change is dearer than addresses that lie idle
		parts /= 2
	}
	n := int(min(uint64(max(q.BlockSize, q.burst)), max(1, free/uint64(parts))))
	scarce = n < (q.BlockSize+1)/2
	offsets = c.share(q, v, self, n)
	if len(offsets) == 0 {
		return nil, true, &FullError{
			Pool: q.Pool, Range: fmt.Sprintf("%s (%s-%s)", r.CIDR, r.First, r.Last), Size: size, Used: v.used,
			Holders: pool.Holders(v.all, 3), Lent: len(nodes) > 1,
		}
	}
	return offsets, scarce, nil
}

// share returns the first free addresses of this node's part of what is free. Each node that has some has such a part, in the
// order of their names, so nodes that claim at a time rarely ask for the same. A new node begins anywhere.
func (c *Claimer) share(q *Request, v *view, self string, n int) []uint64 {
	first, _, _ := q.Range.Bounds()
	free := q.Range.Choose(v.taken, first, max(4096, 4*len(v.taken)))
	if len(free) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(v.nodes))
	i, known := slices.BinarySearch(names, pool.NodeID{Node: self, Machine: c.Node.Machine}.Key())
	begin := i * len(free) / max(1, len(names))
	switch {
	case q.Range.Lowest:
		begin = 0
	case !known:
		begin = int(c.random() * float64(len(free)))
		begin -= begin % max(1, q.BlockSize)
	}
	n = min(n, len(free))
	return append(slices.Clone(free[begin:min(begin+n, len(free))]), free[:max(0, begin+n-len(free))]...)
}
