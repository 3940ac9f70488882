// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An atom is one thing that a program asks about a peer: do these selectors match the pod, is the address in this block, does the
// pod give this name to this port? Policies that ask the same share an atom. An atom has an id, which is a bit of the cells of a
// partition, while a set of this node uses it.
type atom struct {
	key  string // canonical, and the same after a restart
	kind atomKind
	pods compiledPodSelector
	port NamedPort
	block

	refs int // policies and programs that know it
	uses int // programs of live sets that ask it
	id   int // valid while uses > 0
}

type atomKind uint8

const (
	podsAtom atomKind = iota
	blockAtom
	portAtom
	unknownAtom // may the peer be a pod that is not known?
)

// compiledPodSelector is a PodSelector.
type compiledPodSelector struct {
	key       string
	namespace string // a name, or empty
	ofNS      compiledSelector
	ofPod     compiledSelector
}

func compilePodSelector(s PodSelector) compiledPodSelector {
	c := compiledPodSelector{namespace: s.Namespace, ofPod: compileSelector(s.Pods)}
	if s.Namespace != "" {
		c.key = "pods " + c.ofPod.key + " of " + strconv.Quote(s.Namespace)
		return c
	}
	c.ofNS = compileSelector(s.Namespaces)
	c.key = "pods " + c.ofPod.key + " of namespaces " + c.ofNS.key
	return c
}

// matches is about pods of a namespace that is known.
func (c *compiledPodSelector) matches(k *kind) bool {
	return c.matchesNamespace(k.ns) && c.ofPod.matches(k.labels)
}

func (c *compiledPodSelector) matchesNamespace(ns *namespace) bool {
	if c.namespace != "" {
		return ns.name == c.namespace
	}
	return c.ofNS.matches(ns.labels)
}

// block is a Block with networks as netip has them after Unmap, and only those exceptions that take something away.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

func (b *block) contains(addr netip.Addr) bool {
	return b.cidr.Contains(addr) && !slices.ContainsFunc(b.except, func(e netip.Prefix) bool { return e.Contains(addr) })
}

// compileBlock returns false if nothing is in the block.
func compileBlock(b Block) (block, bool) {
	c := block{cidr: b.CIDR.Masked()}
	if !c.cidr.IsValid() || c.cidr.Addr().Is4In6() {
		return block{}, false // the datapath has no such IPv6 packets, and IPv4 is not meant
	}
	for _, e := range b.Except {
		e = e.Masked()
		switch {
		case !e.IsValid() || !e.Overlaps(c.cidr):
		case e.Bits() <= c.cidr.Bits():
			return block{}, false
		default:
			c.except = append(c.except, e)
		}
	}
	slices.SortFunc(c.except, comparePrefixes)
	c.except = slices.CompactFunc(c.except, func(a, b netip.Prefix) bool { return a.Contains(b.Addr()) }) // the wider one comes first
	return c, true
}

func (b *block) key() string {
	var key strings.Builder
	key.WriteString("block ")
	key.WriteString(b.cidr.String())
	for _, e := range b.except {
		key.WriteString(" !")
		key.WriteString(e.String())
	}
	return key.String()
}

// comparePrefixes sorts a network before what it contains.
func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

func namedPortKey(p NamedPort) string {
	return "port " + strconv.Quote(p.Name) + "=" + p.Protocol.String() + "/" + strconv.Itoa(int(p.Number))
}

func compareNamedPorts(a, b NamedPort) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	if a.Protocol != b.Protocol {
		return int(a.Protocol) - int(b.Protocol)
	}
	return int(a.Number) - int(b.Number)
}

// atomTable has the atoms that policies or programs know.
type atomTable map[string]*atom

func (t atomTable) acquire(a *atom) *atom {
	if known := t[a.key]; known != nil {
		a = known
	} else {
		t[a.key] = a
	}
	a.refs++
	return a
}

func (t atomTable) release(a *atom) {
	if a.refs--; a.refs == 0 {
		delete(t, a.key)
	}
}

func (t atomTable) forPods(s PodSelector) *atom {
	c := compilePodSelector(s)
	return t.acquire(&atom{key: c.key, kind: podsAtom, pods: c})
}

// forBlock returns nil for a block that nothing is in.
func (t atomTable) forBlock(b Block) *atom {
	c, ok := compileBlock(b)
	if !ok {
		return nil
	}
	return t.acquire(&atom{key: c.key(), kind: blockAtom, block: c})
}

// forPort returns an atom that nobody has acquired.
func (t atomTable) forPort(p NamedPort) *atom {
	key := namedPortKey(p)
	if known := t[key]; known != nil {
		return known
	}
	return &atom{key: key, kind: portAtom, port: p}
}

// forUnknown returns an atom that nobody has acquired.
func (t atomTable) forUnknown() *atom {
	const key = "unknown"
	if known := t[key]; known != nil {
		return known
	}
	return &atom{key: key, kind: unknownAtom}
}

// atomIndex finds the live atoms that may match a kind without asking all of them.
type atomIndex struct {
	byKey map[indexKey]map[*atom]struct{}
	ports map[NamedPort]*atom
}

// indexKey is a namespace's name, a label of its or of the pod, or nothing.
type indexKey struct {
	by byte // see indexKeys
	pair
	name string
}

const (
	byName = iota + 1
	byPodLabel
	byNamespaceLabel
	byNothing
)

// indexKeys returns where an atom is found: everything that it matches has one of these keys.
func indexKeys(a *atom) []indexKey {
	if a.pods.namespace != "" {
		return []indexKey{{by: byName, name: a.pods.namespace}}
	}
	by, pairs := byte(byPodLabel), a.pods.ofPod.pairs()
	if pairs == nil {
		by, pairs = byNamespaceLabel, a.pods.ofNS.pairs()
	}
	if pairs == nil {
		return []indexKey{{by: byNothing}}
	}
	keys := make([]indexKey, 0, len(pairs))
	for _, p := range pairs {
		keys = append(keys, indexKey{by: by, pair: p})
	}
	return keys
}

func (x *atomIndex) add(a *atom) {
	switch a.kind {
	case podsAtom:
		for _, key := range indexKeys(a) {
			if x.byKey[key] == nil {
				x.byKey[key] = map[*atom]struct{}{}
			}
			x.byKey[key][a] = struct{}{}
		}
	case portAtom:
		x.ports[a.port] = a
	}
}

func (x *atomIndex) remove(a *atom) {
	switch a.kind {
	case podsAtom:
		for _, key := range indexKeys(a) {
			delete(x.byKey[key], a)
			if len(x.byKey[key]) == 0 {
				delete(x.byKey, key)
			}
		}
	case portAtom:
		delete(x.ports, a.port)
	}
}

// attributes returns the ids of the live atoms that match a kind.
func (x *atomIndex) attributes(k *kind) bitset {
	var attrs bitset
	attrs.set(isPod)
	try := func(key indexKey) {
		for a := range x.byKey[key] {
			if a.pods.matches(k) {
				attrs.set(a.id)
			}
		}
	}
	try(indexKey{by: byName, name: k.ns.name})
	for _, p := range k.labels.pairs {
		try(indexKey{by: byPodLabel, pair: p})
	}
	for _, p := range k.ns.labels.pairs {
		try(indexKey{by: byNamespaceLabel, pair: p})
	}
	try(indexKey{by: byNothing})
	for _, p := range k.ports.ports {
		if a := x.ports[p]; a != nil {
			attrs.set(a.id)
		}
	}
	return attrs
}
