// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "net/netip"

// moved writes the addresses of a kind that is in another cell now.
func (e *Engine) moved(k *kind, _ *cell) {
	for _, p := range k.pods {
		for _, a := range p.addrs {
			if _, dirty := e.dirtyAddrs[a]; !dirty && e.addrs[a].pod == p {
				e.writeAddr(a)
			}
		}
	}
}

// writeDirty writes the addresses that have changed hands, or whose pod has changed. Before, they are left alone: they still have the
// class that they had.
func (e *Engine) writeDirty() {
	for a := range e.dirtyAddrs {
		e.writeAddr(a)
	}
	renew(&e.dirtyAddrs)
}

// renew empties a map. One that was large is left to the garbage collector: a map never gives memory back.
func renew[K comparable](m *map[K]struct{}) {
	if len(*m) > 1000 {
		*m = map[K]struct{}{}
	}
	clear(*m)
}

// writeAddr writes what an address is now, or deletes it if nobody has it.
func (e *Engine) writeAddr(a addr16) {
	rec := e.address(a)
	_, isNode := e.nodes[a]
	if rec.pod == nil && !isNode {
		e.deleteAddr(a, rec)
		return
	}
	key, owner := classKey{e.cells.outside, e.regions.cellOf(a.netip())}, Owner(0)
	if rec.pod != nil {
		key.cell, owner = rec.pod.kind.cell, rec.pod.key.owner()
	}
	var before *class
	if rec.class == unwritten {
		before = e.classBehind(a)
	} else if before = e.classes.byID[rec.class]; before.is(key) && rec.owner == owner {
		return
	}
	now := e.classes.acquire(key.cell, key.region)
	if now.id != rec.class || owner != rec.owner {
		e.emit(WritePeer{a.netip(), now.id, owner, e.classes.loses(before, now)})
	}
	if rec.class != unwritten {
		e.classes.release(before)
	}
	rec.class, rec.owner = now.id, owner
	e.addrs[a] = rec
}

func (e *Engine) deleteAddr(a addr16, rec address) {
	if rec.class != unwritten {
		before := e.classes.byID[rec.class]
		e.emit(DeletePeer{a.netip(), rec.owner, e.classes.loses(before, e.classBehind(a))})
		e.classes.release(before)
	}
	delete(e.addrs, a)
}

// classBehind is the class of an address that is not in the table of peers. A prefix has it, or it is OtherClass.
func (e *Engine) classBehind(a addr16) *class {
	return e.classes.byKey[e.keyBehind(e.regions.find(a.netip()))]
}

// keyBehind is what a region says of an address that no pod and no node has; nil is outside of all regions.
func (e *Engine) keyBehind(r *region) classKey {
	switch {
	case r == nil:
		return classKey{e.cells.outside, e.regions.other}
	case r.pods:
		return classKey{e.cells.unknown, r.cell}
	}
	return classKey{e.cells.outside, r.cell}
}

// refreshRegions writes the prefixes that are live now, and the addresses that are in other blocks than before. Prefixes that are not
// needed any more are deleted only with purge.
func (e *Engine) refreshRegions(purge bool) {
	var live []*atom
	for _, a := range e.atoms {
		if a.kind == blockAtom && a.uses > 0 {
			live = append(live, a)
		}
	}
	e.regions.rebuild(live)
	wanted := e.wantedCIDRs()
	for _, r := range e.regions.list { // a network before what is in it, so that no address is without an answer
		p := r.prefix
		if c := wanted[p]; c != nil && e.cidrs[p] != c {
			e.emit(WriteCIDR{p, c.id})
		}
	}
	for p, old := range e.cidrs {
		if wanted[p] == nil {
			if !purge {
				wanted[p] = old // its answer is that of the region around it, which differs by nothing that a live set asks
				continue
			}
			e.emit(DeleteCIDR{p})
		}
		e.classes.release(old)
	}
	e.cidrs = wanted
	for a := range e.addrs {
		if _, dirty := e.dirtyAddrs[a]; !dirty {
			e.writeAddr(a)
		}
	}
}

// wantedCIDRs acquires a class for each prefix whose answer differs from that of the next shorter one.
func (e *Engine) wantedCIDRs() map[netip.Prefix]*class {
	wanted := make(map[netip.Prefix]*class, len(e.regions.list))
	for _, r := range e.regions.list {
		if key := e.keyBehind(r); key != e.keyBehind(r.parent) {
			wanted[r.prefix] = e.classes.acquire(key.cell, key.region)
		}
	}
	return wanted
}
