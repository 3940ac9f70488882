// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "errors"

// Batch is the changes of one commit, in the order in which they have to be applied.
type Batch struct {
	Changes []Change
	retired retired
}

// retired is a mark in the numbers of each sort.
type retired struct{ classes, points int }

var errNamespace = errors.New("the namespace is unknown")

// Commit returns what the objects' changes since the last commit mean for the tables.
//
// After each of the changes, a verdict is that of before or that of afterwards. The order that gives this is: classes are divided as the
// new sets need it, and get the new points' bits; sets; peers; pods; and then in reverse what nobody has any more. Namespaces are taken
// out before all that, and put in after it. A pod whose set changes in the same batch as other pods is closed in between, because its
// old set and a peer's new class may admit what neither state does. So batches are best kept small.
func (e *Engine) Commit() Batch {
	if !e.started {
		e.started = true
		e.writeClosedSet()
		e.refreshRegions(false)
	}
	e.closeNamespaces()
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
	e.openNamespaces()
	b := Batch{Changes: e.changes, retired: retired{e.classes.ids.mark(), e.classes.pointNo.mark()}}
	e.changes = nil
	return b
}

// Settled says that a batch is applied and that nothing in the kernel has numbers any more that it removed: no packet is on its way,
// and no connection's entry has a set of before. Only then are those numbers used again. Batches settle in their order, and a batch
// before another one that has settled has settled too.
func (e *Engine) Settled(b Batch) {
	e.classes.ids.recycle(b.retired.classes)
	e.classes.pointNo.recycle(b.retired.points)
}

// retry has the sets compiled again that had no points, because there may be one now.
func (e *Engine) retry() {
	for _, l := range e.local {
		if err := l.pod.kind.err; errors.Is(err, errPoints) {
			e.stale(l.pod.kind)
		}
	}
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

// writeSets writes the new sets.
func (e *Engine) writeSets() {
	for _, s := range e.sets.newSets {
		e.writeSet(s)
	}
	e.sets.newSets = e.sets.newSets[:0]
}

func (e *Engine) writeSet(s *set) {
	w := WriteSet{ID: s.id, Segments: make([]Segment, 0, len(s.segments))}
	for _, seg := range s.segments {
		w.Segments = append(w.Segments, seg.Segment)
	}
	e.emit(w)
}

func (e *Engine) writeClosedSet() {
	e.emit(WriteSet{ClosedSet, []Segment{{Direction: Ingress, Last: 1<<16 - 1, Point: DenyPoint}, {Direction: Egress, Last: 1<<16 - 1, Point: DenyPoint}}})
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
