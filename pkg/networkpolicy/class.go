// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "slices"

// class is the peers of one cell of kinds whose addresses are in one cell of regions.
type class struct {
	id     Class
	cell   *cell
	region *regionCell
	refs   int    // addresses, and prefixes, that have it
	bits   bitset // by point; those of points that no set has are old
	chunks int    // written
}

type classKey struct {
	cell   *cell
	region *regionCell
}

func (c *class) is(key classKey) bool { return c.cell == key.cell && c.region == key.region }

// ask answers from the attributes of the class.
func (c *class) ask(a *atom) answer {
	switch {
	case a.kind == blockAtom:
		if c.region.attrs.has(a.id) {
			return yes
		}
		return no
	case c.cell.attrs.has(isUnknown):
		return maybe
	case c.cell.attrs.has(a.id):
		return yes
	}
	return no
}

// classes has all classes, and decides their bits.
type classes struct {
	byKey   map[classKey]*class
	byID    []*class
	ids     numbers
	idle    []*class // without refs since the last sweep; some may have got new ones
	emit    func(Change)
	points  map[*program]struct{} // live programs that have a bit
	live    bitset                // their points
	pointNo numbers
}

// newClasses makes OtherClass, for pods of no kind in no block. It is never removed.
func newClasses(outside *cell, other *regionCell, emit func(Change)) *classes {
	c := &classes{
		byKey: map[classKey]*class{}, ids: numbers{last: 1<<32 - 2}, emit: emit,
		points: map[*program]struct{}{}, pointNo: numbers{next: firstPoint, last: 1<<16 - 1},
	}
	c.acquire(outside, other)
	return c
}

// acquire returns the class, with its bits written.
func (t *classes) acquire(cell *cell, region *regionCell) *class {
	key := classKey{cell, region}
	c := t.byKey[key]
	if c == nil {
		id, _ := t.ids.take() // as many as there can be addresses
		c = &class{id: Class(id), cell: cell, region: region}
		c.bits.set(int(AcceptPoint))
		for p := range t.points {
			if p.admits(c) {
				c.bits.set(int(p.point))
			}
		}
		t.byKey[key] = c
		t.byID = slices.Grow(t.byID, max(0, id+1-len(t.byID)))[:max(len(t.byID), id+1)]
		t.byID[id] = c
		c.chunks = len(c.bits)*64/ChunkBits + 1
		for i := range c.chunks {
			t.write(c, i)
		}
	}
	c.refs++
	return c
}

func (t *classes) release(c *class) {
	if c.refs--; c.refs == 0 {
		t.idle = append(t.idle, c)
	}
}

// fill gives new programs their points' bits in all classes.
func (t *classes) fill(programs []*program) {
	if len(programs) == 0 {
		return
	}
	for _, p := range programs {
		t.points[p] = struct{}{}
		t.live.set(int(p.point))
	}
	for _, c := range t.byKey {
		touched := map[int]struct{}{}
		for _, p := range programs {
			admits := p.admits(c)
			if admits == c.bits.has(int(p.point)) {
				continue
			}
			if admits {
				c.bits.set(int(p.point))
			} else {
				c.bits.clear(int(p.point))
			}
			touched[int(p.point)/ChunkBits] = struct{}{}
		}
		for i := range touched {
			c.chunks = max(c.chunks, i+1)
			t.write(c, i)
		}
	}
}

// forget is for a program that no set has any more.
func (t *classes) forget(p *program) {
	delete(t.points, p)
	t.live.clear(int(p.point))
	t.pointNo.retire(int(p.point))
}

// loses reports whether a live program admits the old class and not the new one.
func (t *classes) loses(before, now *class) bool {
	for i, live := range t.live {
		if i >= len(before.bits) {
			return false
		}
		lost := before.bits[i] & live
		if i < len(now.bits) {
			lost &^= now.bits[i]
		}
		if lost != 0 {
			return true
		}
	}
	return false
}

func (t *classes) write(c *class, index int) {
	w := WriteBits{Class: c.id, Index: index}
	for i := range w.Bits {
		if j := index*len(w.Bits) + i; j < len(c.bits) {
			w.Bits[i] = c.bits[j]
		}
	}
	t.emit(w)
}

// sweep removes the classes that nothing has any more.
func (t *classes) sweep() {
	for _, c := range t.idle {
		if c.refs > 0 || t.byKey[classKey{c.cell, c.region}] != c {
			continue
		}
		delete(t.byKey, classKey{c.cell, c.region})
		t.byID[c.id] = nil
		t.emit(DeleteBits{Class: c.id, Chunks: c.chunks})
		t.ids.retire(int(c.id))
	}
	t.idle = t.idle[:0]
}
