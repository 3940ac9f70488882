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

// chooser picks the offsets of the next claim.
type chooser struct {
	q         *Request
	v         *view
	self      string // this node as pool.Nodes has it
	contended bool   // changes of nodes disturb each other
	random    func() float64
}

func (o *operation) chooser(v *view) *chooser {
	self := pool.NodeID{Node: o.file.state.Node, Machine: o.c.Node.Machine}.Key()
	return &chooser{o.q, v, self, o.pools.backoff(o.q.Pool) > 0, o.c.random}
}

// wanted returns the offset of the address that is asked for.
func (c *chooser) wanted() ([]uint64, error) {
	cidr, wanted := c.q.Range.CIDR, c.q.Wanted
	off, ok := pool.Offset(cidr, wanted)
	if !ok {
		return nil, fmt.Errorf("%s is not in %s", wanted, cidr)
	}
	e, taken := c.v.own[off]
	if !taken {
		e, taken = c.v.elsewhere[off]
	}
	if taken {
		return nil, &FullError{Pool: c.q.Pool, Range: cidr.String(), Wanted: wanted.String(), WantedOfOwner: e.Holder()}
	}
	return []uint64{off}, nil
}

// block picks at most that many offsets: less when few addresses are left, one when the pool is
// nearly full. Addresses are scarce if it is less than half a block.
func (c *chooser) block(size int) (offsets []uint64, scarce bool, err error) {
	r, v := &c.q.Range, c.v
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
	nodes[c.self] = true
	parts := 2 * max(fewNodes, len(nodes))
	if c.contended { // a change is dearer than addresses that lie idle
		parts /= 2
	}
	n := int(min(uint64(size), max(1, free/uint64(parts))))
	scarce = n < (c.q.BlockSize+1)/2
	if offsets = c.share(taken, n); len(offsets) > 0 {
		return offsets, scarce, nil
	}
	all := maps.Clone(v.own)
	maps.Copy(all, v.elsewhere)
	return nil, true, &FullError{
		Pool: c.q.Pool, Range: fmt.Sprintf("%s (%s-%s)", r.CIDR, r.First, r.Last), Size: total, Used: used,
		Holders: pool.Holders(all, 3), Lent: len(nodes) > 1,
	}
}

// share returns the first free addresses of this node's part of what is free. Each node that has
// some has such a part, in the order of their names, so nodes that claim at a time rarely ask for
// the same. A new node begins anywhere.
func (c *chooser) share(taken map[uint64]bool, n int) []uint64 {
	r := &c.q.Range
	first, _, _ := r.Bounds()
	free := r.Choose(taken, first, max(4096, 4*len(taken)))
	if len(free) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(c.v.nodes))
	i, known := slices.BinarySearch(names, c.self)
	begin := i * len(free) / max(1, len(names))
	switch {
	case r.Lowest:
		begin = 0
	case !known:
		begin = int(c.random() * float64(len(free)))
		begin -= begin % max(1, c.q.BlockSize)
	}
	n = min(n, len(free))
	return append(slices.Clone(free[begin:min(begin+n, len(free))]), free[:max(0, begin+n-len(free))]...)
}

// isScarce reports whether a claim gets less than half a block.
func (o *operation) isScarce(taken map[uint64]pool.Entry) bool {
	_, scarce, err := o.chooser(&view{own: taken, nodes: pool.Nodes(taken)}).block(o.q.BlockSize)
	return scarce || err != nil
}
