// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"errors"
	"net/netip"
	"slices"
)

// Batch is the changes of one commit, in the order in which they have to be applied.
type Batch struct {
	Changes []Change
	retired retired
}

// retired is a mark in the numbers of each sort.
type retired struct{ classes, points, sets int }

var errNamespace = errors.New("the namespace is unknown")

// Commit returns what the objects' changes since the last commit mean for the tables.
//
// After each of the changes, a verdict is that of before or that of afterwards. The order that gives this is: classes are divided as the
// new sets need it, and get the new points' bits; sets; peers; pods; and then in reverse what nobody has any more. A pod whose set
// changes in the same batch as other pods is closed in between, because its old set and a peer's new class may admit what neither
// state does. So batches are best kept small.
func (e *Engine) Commit() Batch {
	if !e.started {
		e.started = true
		e.emit(WriteSet{ClosedSet, []Segment{{Direction: Ingress, Last: 1<<16 - 1, Point: DenyPoint}, {Direction: Egress, Last: 1<<16 - 1, Point: DenyPoint}}})
		e.refreshRegions(false)
	}
	e.retry()
	dropped := e.compileSets()
	e.addAtoms()
	e.classes.fill(e.sets.newPrograms)
	e.sets.newPrograms = e.sets.newPrograms[:0]
	e.writeSets()
	e.closePods()
	e.placeKinds()
	e.writeDirty()
	e.writePods()
	e.removeSets(dropped)
	e.classes.sweep()
	for k := range e.dirtyKinds {
		if len(k.pods) == 0 {
			e.forgetKind(k)
		}
	}
	renew(&e.dirtyKinds)
	renew(&e.dirtyPods)
	renew(&e.staleKinds)
	b := Batch{Changes: e.changes, retired: retired{e.classes.ids.mark(), e.classes.pointNo.mark(), e.sets.ids.mark()}}
	e.changes = nil
	return b
}

// Settled says that a batch is applied and that nothing in the kernel has numbers any more that it removed: no packet is on its way,
// and no connection's entry has a set of before. Only then are those numbers used again. Batches settle in their order, and a batch
// before another one that has settled has settled too.
func (e *Engine) Settled(b Batch) {
	e.classes.ids.recycle(b.retired.classes)
	e.classes.pointNo.recycle(b.retired.points)
	for _, id := range e.sets.ids.recycle(b.retired.sets) {
		delete(e.sets.taken, SetID(id))
	}
}

// retry has the sets compiled again that had no number, because there may be one now.
func (e *Engine) retry() {
	for _, l := range e.local {
		if err := l.pod.kind.err; errors.Is(err, errPoints) || errors.Is(err, errSets) {
			e.stale(l.pod.kind)
		}
	}
}

// compileSets finds the sets of the local kinds that are stale, and returns those that a kind no longer has.
func (e *Engine) compileSets() []*set {
	var dropped []*set
	for k := range e.staleKinds {
		k.stale = false
		old := k.set
		k.set, k.err, k.uses = nil, nil, nil
		if k.local > 0 {
			k.set, k.err = e.compileSet(k)
		}
		if old != nil {
			old.kinds--
			dropped = append(dropped, old)
		}
	}
	return dropped
}

// compileSet returns the set of a kind, nil for OpenSet.
func (e *Engine) compileSet(k *kind) (*set, error) {
	if !k.ns.known {
		return nil, errNamespace
	}
	var drafts [2][]draft
	policies := e.policiesOf(k)
	for _, dir := range directions {
		c := directionCompiler{dir: dir, local: k.ports, atoms: e.atoms, named: func(r *rule, p Port) []NamedPort { return e.namedPorts(k, r, p) }}
		for _, p := range policies {
			c.isolated = c.isolated || p.Tier == NetworkPolicies && p.Isolates[dir]
			if p.Tier != NetworkPolicies || p.Isolates[dir] {
				c.rules = append(c.rules, p.rules[dir]...)
			}
		}
		drafts[dir] = c.compile()
	}
	if isOpen(drafts) {
		return nil, nil
	}
	return e.sets.acquire(drafts)
}

// policiesOf returns the policies that select a kind, in the order of evaluation.
func (e *Engine) policiesOf(k *kind) []*policy {
	var out []*policy
	for _, p := range e.cluster {
		if p.selects(k) {
			out = append(out, p)
		}
	}
	for _, p := range k.ns.policies {
		if p.selects(k) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, (*policy).order)
	return out
}

// namedPorts returns what the peers of an egress rule mean by a port's name. Blocks are not asked which pods are in them, so a rule
// with a block gets what all pods mean; that costs segments, and changes no verdict.
func (e *Engine) namedPorts(k *kind, r *rule, p Port) []NamedPort {
	use := namedUse{r, p, map[NamedPort]struct{}{}}
	var out []NamedPort
	for n, kinds := range e.byPort[p.Name] {
		for peer := range kinds {
			if use.means(peer, n) {
				out = append(out, n)
				use.named[n] = struct{}{}
				break
			}
		}
	}
	k.uses = append(k.uses, use)
	return out
}

func (r *rule) mayMatch(k *kind) bool {
	return r.anyPeer || slices.ContainsFunc(r.peers, func(a *atom) bool { return a.kind == blockAtom || a.pods.matches(k) })
}

// addAtoms divides the classes by what new programs ask. No bit that a live set reads changes by it.
func (e *Engine) addAtoms() {
	blocks := false
	for _, a := range e.sets.newAtoms {
		if a.kind == blockAtom {
			blocks = true
			continue
		}
		e.index.add(a)
		if matched := e.matched(a); len(matched) > 0 {
			e.cells.split(a.id, matched)
		}
	}
	e.sets.newAtoms = e.sets.newAtoms[:0]
	if blocks {
		e.refreshRegions(false)
	}
}

// matched returns the kinds in cells that an atom matches. Kinds of unknown namespaces match nothing.
func (e *Engine) matched(a *atom) []*kind {
	var out []*kind
	try := func(kinds map[*kind]struct{}) {
		for k := range kinds {
			if k.cell != nil && k.cell != e.cells.unknown && (a.kind == portAtom || a.pods.ofPod.matches(k.labels)) {
				out = append(out, k)
			}
		}
	}
	switch {
	case a.kind == unknownAtom: // no kind has it; see class.ask
	case a.kind == portAtom:
		try(e.byPort[a.port.Name][a.port])
	case a.pods.namespace != "":
		if ns := e.namespaces[a.pods.namespace]; ns != nil {
			try(ns.kinds)
		}
	default:
		for _, ns := range e.namespaces {
			if ns.known && a.pods.matchesNamespace(ns) {
				try(ns.kinds)
			}
		}
	}
	return out
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
	answers := map[*region]classKey{}
	for _, r := range e.regions.list {
		cell := e.cells.outside
		if r.pods {
			cell = e.cells.unknown
		}
		key, above := classKey{cell, r.cell}, classKey{e.cells.outside, e.regions.other}
		if r.parent != nil {
			above = answers[r.parent]
		}
		answers[r] = key
		if key != above {
			wanted[r.prefix] = e.classes.acquire(cell, r.cell)
		}
	}
	return wanted
}

// writeSets writes the new sets.
func (e *Engine) writeSets() {
	for _, s := range e.sets.newSets {
		w := WriteSet{ID: s.id, Segments: make([]Segment, 0, len(s.segments))}
		for _, seg := range s.segments {
			w.Segments = append(w.Segments, seg.Segment)
		}
		e.emit(w)
	}
	e.sets.newSets = e.sets.newSets[:0]
}

func (k *kind) setID() SetID {
	switch {
	case k.err != nil:
		return ClosedSet
	case k.set == nil:
		return OpenSet
	}
	return k.set.id
}

// closePods closes the pods whose sets change together with what other pods are as peers.
func (e *Engine) closePods() {
	for key, l := range e.local {
		_, own := e.dirtyPods[key]
		if others := len(e.dirtyPods) > 1 || len(e.dirtyPods) == 1 && !own; !others {
			continue
		}
		if l.written && l.set != l.pod.kind.setID() && l.set != ClosedSet {
			l.set = ClosedSet
			e.emit(WritePod{l.uid, ClosedSet})
		}
	}
	for _, l := range e.gone {
		e.emit(DeletePod{l.uid})
	}
	e.gone = nil
}

// placeKinds finds the cells of kinds that are new, or whose namespace's labels changed.
func (e *Engine) placeKinds() {
	for k := range e.dirtyKinds {
		if !k.queued || len(k.pods) == 0 {
			continue
		}
		k.queued = false
		if k.ns.known {
			e.cells.put(k, e.cells.cell(e.index.attributes(k)))
		} else {
			e.cells.put(k, e.cells.unknown)
		}
	}
}

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
	key := classKey{e.cells.outside, e.regions.other}
	if r := e.regions.find(a.netip()); r != nil {
		key.region = r.cell
		if r.pods {
			key.cell = e.cells.unknown
		}
	}
	return e.classes.byKey[key]
}

// writePods writes the sets of pods that are new or have another one.
func (e *Engine) writePods() {
	for _, l := range e.local {
		if id := l.pod.kind.setID(); !l.written || l.set != id {
			l.written, l.set = true, id
			e.emit(WritePod{l.uid, id})
		}
	}
}

// removeSets removes the sets that no kind has any more, and unites the classes that differed by what only those asked.
func (e *Engine) removeSets(dropped []*set) {
	var unused []*atom
	for _, s := range dropped {
		if s.kinds == 0 && e.sets.byKey[s.key] == s {
			e.emit(DeleteSet{s.id})
			unused = append(unused, e.sets.remove(s)...)
		}
	}
	blocks := false
	for _, a := range unused {
		if a.kind == blockAtom {
			blocks = true
		} else {
			e.index.remove(a)
			e.cells.merge(a.id)
		}
	}
	if blocks {
		e.refreshRegions(true)
	}
	for _, a := range unused {
		e.sets.atomIDs.give(a.id)
	}
}
