// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "slices"

// A kind is the pods of a namespace with the same labels and the same named ports. Replicas are one kind, so what policies say of
// a pod is found once for all of them.
type kind struct {
	ns     *namespace
	labels *labelSet
	ports  *portSet
	pods   []*pod
	local  int   // pods of this node, whose set is wanted
	cell   *cell // nil until the next commit
	set    *set  // of the local pods; nil for OpenSet, and for ClosedSet if err is set
	err    error // why the local pods have ClosedSet
	queued bool  // cell has to be found again
	stale  bool  // set has to be compiled again

	uses []namedUse
}

// namedUse is an egress rule of a set and one of its ports, which has a name, with what the peers of the rule mean by it.
type namedUse struct {
	rule  *rule
	port  Port
	named map[NamedPort]struct{}
}

// means reports whether a peer's port has the name, and the peer may be one of the rule's.
func (u *namedUse) means(peer *kind, p NamedPort) bool {
	return u.port.Name == p.Name && (u.port.Protocol == AnyProtocol || u.port.Protocol == p.Protocol) && p.Protocol.hasPorts() &&
		len(peer.pods) > 0 && peer.ns.known && u.rule.mayMatch(peer)
}

type kindKey struct {
	ns     *namespace
	labels *labelSet
	ports  *portSet
}

// cell is the kinds that all live atoms of pods and ports say the same about.
type cell struct {
	attrs bitset
	key   string
	kinds map[*kind]struct{}
}

// The lowest attributes are no atoms'. A cell without any is for addresses that are no pod's.
const (
	isPod = iota
	isUnknown
	firstAtom
)

// partition has all cells.
type partition struct {
	cells            map[string]*cell
	outside, unknown *cell // never removed
	move             func(k *kind, to *cell)
}

func newPartition(move func(k *kind, to *cell)) *partition {
	p := &partition{cells: map[string]*cell{}, move: move}
	p.outside = p.cell(nil)
	p.unknown = p.cell(bitset(nil).with(isUnknown))
	return p
}

func (p *partition) cell(attrs bitset) *cell {
	key := attrs.key()
	c := p.cells[key]
	if c == nil {
		c = &cell{attrs: attrs, key: key, kinds: map[*kind]struct{}{}}
		p.cells[key] = c
	}
	return c
}

// put moves a kind, or takes it out if to is nil.
func (p *partition) put(k *kind, to *cell) {
	from := k.cell
	if from == to {
		return
	}
	if from != nil {
		delete(from.kinds, k)
	}
	k.cell = to
	if to != nil {
		to.kinds[k] = struct{}{}
		p.move(k, to)
	}
	if from != nil && len(from.kinds) == 0 && from != p.outside && from != p.unknown && p.cells[from.key] == from {
		delete(p.cells, from.key)
	}
}

// rename gives a cell other attributes, which no other cell has.
func (p *partition) rename(c *cell, attrs bitset) {
	delete(p.cells, c.key)
	c.attrs, c.key = attrs, attrs.key()
	p.cells[c.key] = c
}

// split gives the attribute id, which is new, to some kinds. Where they are only a part of a cell, the smaller part moves.
func (p *partition) split(id int, matched []*kind) {
	parts := map[*cell][]*kind{}
	for _, k := range matched {
		parts[k.cell] = append(parts[k.cell], k)
	}
	for c, part := range parts {
		attrs, with := c.attrs, c.attrs.with(id)
		if 2*len(part) <= len(c.kinds) {
			to := p.cell(with)
			for _, k := range part {
				p.put(k, to)
			}
			continue
		}
		others := make([]*kind, 0, len(c.kinds)-len(part))
		if len(part) < len(c.kinds) {
			for k := range c.kinds {
				if !slices.Contains(part, k) {
					others = append(others, k)
				}
			}
		}
		p.rename(c, with)
		if len(others) > 0 {
			to := p.cell(attrs)
			for _, k := range others {
				p.put(k, to)
			}
		}
	}
}

// merge takes the attribute id from all kinds. Where two cells become the same, the smaller one moves into the other.
func (p *partition) merge(id int) {
	var having []*cell
	for _, c := range p.cells {
		if c.attrs.has(id) {
			having = append(having, c)
		}
	}
	for _, c := range having {
		attrs := c.attrs.without(id)
		to := p.cells[attrs.key()]
		if to == nil {
			p.rename(c, attrs)
			continue
		}
		if len(to.kinds) < len(c.kinds) {
			smaller := to
			p.rename(c, attrs) // and takes the other one's place
			c, to = smaller, c
		}
		for k := range c.kinds {
			p.put(k, to)
		}
	}
}
