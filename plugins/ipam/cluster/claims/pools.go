// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// pools reads and changes the pools of the store for one operation. What it reads goes into the
// cache.
type pools struct {
	c     *Claimer
	q     *Request
	cache cache
}

// view is what a node sees before it claims.
type view struct {
	own       map[uint64]pool.Entry // what the pool has
	nodes     map[string]bool       // pool.Nodes of it
	elsewhere map[uint64]pool.Entry // what others have in pools that overlap, and what is reserved, by the offsets of this pool
	overlaps  []overlap
	cached    string // the range that the pool's object had, if this is from the cache
}

// overlap is another pool that has some of the addresses.
type overlap struct {
	name  string
	cidr  netip.Prefix
	taken map[uint64]pool.Entry
}

// read returns the pool, which it makes if there is none, and its allocations.
func (p *pools) read(ctx context.Context) (*pool.Object, map[uint64]pool.Entry, error) {
	obj, err := p.c.Store.Get(ctx, p.q.Pool)
	if err == nil && obj == nil {
		if err = p.c.Store.Create(ctx, p.q.Pool, p.q.Range.CIDR.String()); err == nil {
			obj, err = p.c.Store.Get(ctx, p.q.Pool)
		}
	}
	if err == nil && obj == nil {
		err = fmt.Errorf("pool %s: %w: it was removed", p.q.Pool, ErrConflict)
	}
	if err != nil {
		return nil, nil, err
	}
	taken, err := checked(obj, p.q.Range.CIDR)
	return obj, taken, err
}

// cachedView returns the pool as the cache has it, or nil if the pool has to be read before a
// claim. s is the node's file.
func (p *pools) cachedView(s *blocks.State) *view {
	k := &p.cache
	if p.q.Hold != "" || p.q.Wanted.IsValid() || k.UID == "" || k.Range == "" || !p.c.within(k.Seen, freshFor) || !p.knownNotOverlapping(k.UID) ||
		p.q.Overlapping && !p.c.within(k.ReservedSeen, aloneFor) || !s.Current(p.c.Node) || s.CIDR != p.q.Range.CIDR {
		return nil
	}
	v := &view{own: map[uint64]pool.Entry{}, nodes: map[string]bool{}, elsewhere: k.reserved(), cached: k.Range}
	for _, c := range append(slices.Clip(s.Trying), blocks.Claim{Runs: k.Taken}) { // the store may have by now what was asked for
		for _, off := range c.Offsets() {
			v.own[off] = pool.Entry{}
		}
	}
	for _, n := range k.Nodes {
		v.nodes[n] = true
	}
	return v
}

// dropView has the next claim read the pool.
func (p *pools) dropView() {
	p.cache.Seen = time.Time{}
	p.cache.save()
}

// readAll reads the pool, those that overlap unless the node knows that there are none, and the
// reservations.
func (p *pools) readAll(ctx context.Context) (*view, error) {
	v := &view{}
	if !p.knownNotOverlapping(p.cache.UID) {
		var err error
		if v.own, v.overlaps, err = p.listOverlaps(ctx); err != nil {
			return nil, err
		}
		if v.own == nil {
			if err := p.c.Store.Create(ctx, p.q.Pool, p.q.Range.CIDR.String()); err != nil {
				return nil, err
			}
		}
	}
	if v.own == nil {
		obj, taken, err := p.read(ctx)
		if err != nil {
			return nil, err
		}
		p.cache.cachePool(obj, taken, p.c.now())
		p.cache.save()
		v.own = taken
	}
	v.nodes, v.elsewhere = pool.Nodes(v.own), p.takenElsewhere(v.overlaps)
	if p.q.Overlapping {
		if err := p.readReservations(ctx, v.own); err != nil {
			return nil, err
		}
		maps.Copy(v.elsewhere, p.cache.reserved())
	}
	return v, nil
}

// listOverlaps returns the allocations of the pool, nil if there is none, and the pools that
// overlap with it.
func (p *pools) listOverlaps(ctx context.Context) (map[uint64]pool.Entry, []overlap, error) {
	if !p.q.Overlapping {
		_, taken, err := p.read(ctx)
		return taken, nil, err
	}
	began := p.c.now()
	list, err := p.c.Store.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	return p.overlapsIn(ctx, list, began)
}

// overlapsIn is listOverlaps with a list of all pools that was asked for at a time.
func (p *pools) overlapsIn(ctx context.Context, list []pool.Object, began time.Time) (own map[uint64]pool.Entry, others []overlap, err error) {
	var object *pool.Object
	var nodes map[string]bool
	for i := range list {
		obj := &list[i]
		if obj.Name == p.q.Pool {
			if own, err = checked(obj, p.q.Range.CIDR); err != nil {
				return nil, nil, err
			}
			object = obj
			continue
		}
		cidr, err := obj.Prefix()
		if err != nil || !cidr.Overlaps(p.q.Range.CIDR) {
			continue // broken, or apart
		}
		same, err := p.sameNetwork(ctx, obj, &nodes)
		if err != nil {
			return nil, nil, err
		}
		if !same {
			continue
		}
		taken, err := obj.Taken()
		if err != nil {
			return nil, nil, &ObjectError{err}
		}
		others = append(others, overlap{obj.Name, cidr, taken})
	}
	if object != nil {
		p.cache.cachePool(object, own, p.c.now())
		if p.cache.Alone = (time.Time{}); len(others) == 0 {
			p.cache.Alone = began
		}
		p.cache.save()
	}
	return own, others, nil
}

// sameNetwork reports whether a pool is of the network of the request: one of a range, or of the
// slice that a node has of a range. nodes are asked for once, and only if there is a name that may
// be a slice's.
func (p *pools) sameNetwork(ctx context.Context, obj *pool.Object, nodes *map[string]bool) (bool, error) {
	if obj.Name == pool.Name(p.q.Network, "", obj.Range) {
		return true, nil
	}
	node, ok := pool.SliceNode(p.q.Network, obj.Name, obj.Range)
	if !ok {
		return false, nil
	}
	if *nodes == nil {
		var err error
		if *nodes, err = p.c.Store.SliceNodes(ctx); err != nil {
			return false, err
		}
	}
	return (*nodes)[node], nil
}

// knownNotOverlapping reports whether no pool overlaps with the one of this UID, as far as it was
// seen not long ago.
func (p *pools) knownNotOverlapping(uid string) bool {
	return !p.q.Overlapping || uid != "" && p.cache.UID == uid && p.c.within(p.cache.Alone, aloneFor)
}

// takenElsewhere returns what others have in the pools that overlap, by the offsets of the
// request's pool.
func (p *pools) takenElsewhere(others []overlap) map[uint64]pool.Entry {
	out := map[uint64]pool.Entry{}
	for _, o := range others {
		for off, e := range o.taken {
			if here, ok := translate(o.cidr, off, p.q.Range.CIDR); ok && !p.c.ownMirror(e) {
				out[here] = e
			}
		}
	}
	return out
}

// translate returns the offset in another pool of the address at an offset of one.
func translate(from netip.Prefix, off uint64, to netip.Prefix) (uint64, bool) {
	a, _ := pool.Addr(from, off)
	return pool.Offset(to, a)
}

// readReservations notes which addresses without an entry whereabouts has reserved for pods. It
// gives such an address to no other pod. The node remembers them for aloneFor: with the address,
// whereabouts writes an entry first.
func (p *pools) readReservations(ctx context.Context, own map[uint64]pool.Entry) error {
	if p.c.within(p.cache.ReservedSeen, aloneFor) {
		return nil
	}
	began := p.c.now()
	all, err := p.c.Store.Reservations(ctx)
	if err != nil {
		return err
	}
	p.cache.ReservedSeen, p.cache.Reserved = began, map[uint64]string{}
	for name, podRef := range all {
		a, ok := pool.ReservedAddr(p.q.Network, name)
		if !ok {
			continue
		}
		off, ok := pool.Offset(p.q.Range.CIDR, a)
		if _, taken := own[off]; ok && !taken {
			p.cache.Reserved[off] = podRef
		}
	}
	p.cache.save()
	return nil
}

// checked returns the allocations of a pool of that range.
func checked(obj *pool.Object, cidr netip.Prefix) (map[uint64]pool.Entry, error) {
	p, err := obj.Prefix()
	if err == nil && p != cidr {
		err = fmt.Errorf("pool %s: range %s, the configuration has %s; correct the object", obj.Name, p, cidr)
	}
	if err != nil {
		return nil, &ObjectError{err}
	}
	taken, err := obj.Taken()
	if err != nil {
		return nil, &ObjectError{err}
	}
	return taken, nil
}

const (
	// freshFor is how old the cache of a pool may be for a claim that does not read the pool
	// before.
	freshFor = 10 * time.Second
	// aloneFor is for how long a pool counts as one that no other overlaps, after none did. Another
	// node that makes one later enters its claims into this pool too; whereabouts does not.
	aloneFor = 30 * time.Second
	// deadPause is how often a node asks whether others are gone.
	deadPause = 5 * time.Second
)

// cache is what a node has seen of a pool, in a file. It saves requests. What it says of free
// addresses may be wrong: a claim of one that is taken changes nothing. What it says of overlapping
// pools holds, see docs/dev/adr/0040-cluster-addresses.md. Its users have the lock of the pool's
// claims.
type cache struct {
	path string

	Boot string `json:"boot"` // of the node
	UID  string `json:"uid"`  // of the pool's object, or empty: nothing was seen

	// Range is the object's, as it has it. A claim from the cache asks for it: in another range an
	// offset is another address.
	Range string `json:"range"`

	Seen  time.Time   `json:"seen"`  // when the pool was as below
	Taken [][2]uint64 `json:"taken"` // first and last offset
	Nodes []string    `json:"nodes"` // of pool.Nodes

	Alone time.Time `json:"alone"` // when no pool overlapped, and the pool was there
	// Reserved are offsets that whereabouts had reserved for pods at a time. See pools.reserved.
	Reserved     map[uint64]string `json:"reserved,omitempty"`
	ReservedSeen time.Time         `json:"reservedSeen"`

	LookedForDead time.Time `json:"lookedForDead"`
}

// load reads the file. One that cannot be read, or that is of another boot, is an empty cache.
func (k *cache) load() {
	seen := cache{path: k.path}
	if readJSON(k.path, &seen) && seen.Boot == k.Boot {
		*k = seen
	}
}

// save writes the file. Without it the next claim asks more.
func (k *cache) save() { writeJSON(k.path, k) }

// cachePool notes how a pool is. The caller saves the cache.
func (k *cache) cachePool(obj *pool.Object, taken map[uint64]pool.Entry, now time.Time) {
	if k.UID != obj.UID {
		*k = cache{path: k.path, Boot: k.Boot, UID: obj.UID, LookedForDead: k.LookedForDead}
	}
	k.Range, k.Seen = obj.Range, now
	k.Taken, k.Nodes = blocks.Runs(slices.Collect(maps.Keys(taken))), slices.Sorted(maps.Keys(pool.Nodes(taken)))
}

// reserved returns the reservations as entries.
func (k *cache) reserved() map[uint64]pool.Entry {
	out := make(map[uint64]pool.Entry, len(k.Reserved))
	for off, podRef := range k.Reserved {
		out[off] = pool.Entry{PodRef: podRef}
	}
	return out
}
