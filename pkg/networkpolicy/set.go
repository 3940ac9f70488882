// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// MaxSegments is how many segments a set may have in both directions together. The datapath compares a packet with all of them, so
// their number is bounded; pods whose policies need more get ClosedSet.
const MaxSegments = 128

var (
	errSegments = fmt.Errorf("policies cut the ports into more than %d segments", MaxSegments)
	errPoints   = errors.New("the policies of this node ask more different questions than a class has bits")
)

// set is the policies of a direction, of all local pods for which they mean the same.
type set struct {
	id       SetID
	key      string
	segments []setSegment
	kinds    int // that have it
}

type setSegment struct {
	Segment
	program *program
}

// setTable has the live sets, and the programs and atoms that they use.
type setTable struct {
	byKey    map[string]*set
	programs map[string]*program
	atoms    atomTable
	atomIDs  numbers
	classes  *classes

	newAtoms    []*atom
	newPrograms []*program
	newSets     []*set
}

func newSetTable(atoms atomTable, c *classes) *setTable {
	return &setTable{
		byKey: map[string]*set{}, programs: map[string]*program{},
		atoms: atoms, atomIDs: numbers{next: firstAtom, last: 1 << 30}, classes: c,
	}
}

// setKey is the text of a set's meaning. It names neither points nor ids, so that a restarted engine finds the same one.
func setKey(drafts [2][]draft) string {
	var b strings.Builder
	for _, dir := range directions {
		for _, d := range drafts[dir] {
			fmt.Fprintf(&b, "%s %s %d-%d: %s\n", dir, d.protocol, d.span.first, d.span.last, d.program.key)
		}
	}
	return b.String()
}

// isOpen reports whether nothing is restricted.
func isOpen(drafts [2][]draft) bool {
	for _, dir := range directions {
		if len(drafts[dir]) != 1 || drafts[dir][0].program.key != acceptKey {
			return false
		}
	}
	return true
}

// acquire returns the set that means drafts. An error leaves nothing behind.
func (t *setTable) acquire(drafts [2][]draft) (*set, error) {
	key := setKey(drafts)
	if s := t.byKey[key]; s != nil {
		s.kinds++
		return s, nil
	}
	if len(drafts[Ingress])+len(drafts[Egress]) > MaxSegments {
		return nil, errSegments
	}
	if !t.hasPoints(drafts) {
		return nil, errPoints
	}
	s := &set{id: idOf(key), key: key, kinds: 1}
	for _, dir := range directions {
		for _, d := range drafts[dir] {
			p := t.acquireProgram(d.program)
			s.segments = append(s.segments, setSegment{Segment{dir, d.protocol, d.span.first, d.span.last, p.point}, p})
			if d.protocol == AnyProtocol {
				s.segments[len(s.segments)-1].Last = 1<<16 - 1
			}
		}
	}
	t.byKey[key] = s
	t.newSets = append(t.newSets, s)
	return s, nil
}

// idOf is the number of the set with that meaning.
func idOf(key string) SetID {
	sum := sha256.Sum256([]byte(key))
	return max(firstSet, SetID(binary.BigEndian.Uint64(sum[:])))
}

// hasPoints reports whether the programs of drafts can have a point each.
func (t *setTable) hasPoints(drafts [2][]draft) bool {
	unknown := map[string]bool{}
	for _, dir := range directions {
		for _, d := range drafts[dir] {
			if key := d.program.key; t.programs[key] == nil && key != acceptKey && key != denyKey {
				unknown[key] = true
			}
		}
	}
	return len(unknown) <= t.classes.pointNo.left()
}

func (t *setTable) acquireProgram(p *program) *program {
	if known := t.programs[p.key]; known != nil {
		known.refs++
		return known
	}
	switch p.key {
	case acceptKey:
		p.point = AcceptPoint
	case denyKey:
		p.point = DenyPoint
	default:
		point, _ := t.classes.pointNo.take() // see hasPoints
		p.point = Point(point)
		p.share(t.useAtom)
		t.newPrograms = append(t.newPrograms, p)
	}
	p.refs = 1
	t.programs[p.key] = p
	return p
}

// share replaces the atoms of a program by those that all programs share.
func (p *program) share(use func(*atom) *atom) {
	conds := func(list []cond) {
		for i, c := range list {
			if c.peer != nil {
				list[i].peer = use(c.peer)
			}
			if c.port != nil {
				list[i].port = use(c.port)
			}
		}
	}
	for _, s := range p.admin {
		conds(s.conds)
	}
	conds(p.allow)
	for _, s := range p.base {
		conds(s.conds)
	}
}

func (t *setTable) useAtom(a *atom) *atom {
	a = t.atoms.acquire(a)
	if a.uses++; a.uses == 1 {
		a.id, _ = t.atomIDs.take()
		t.newAtoms = append(t.newAtoms, a)
	}
	return a
}

// remove forgets a set that nobody has, and returns the atoms that nobody asks any more. They keep their ids.
func (t *setTable) remove(s *set) []*atom {
	delete(t.byKey, s.key)
	var unused []*atom
	for _, seg := range s.segments {
		p := seg.program
		if p.refs--; p.refs > 0 {
			continue
		}
		delete(t.programs, p.key)
		if p.point < firstPoint {
			continue
		}
		t.classes.forget(p)
		p.atoms(func(a *atom) {
			if a.uses--; a.uses == 0 {
				unused = append(unused, a)
			}
			t.atoms.release(a)
		})
	}
	return unused
}
