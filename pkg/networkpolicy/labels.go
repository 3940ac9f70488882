// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"slices"
	"strings"
	"unique"
)

// word is an interned string of a label. Words are compared by their pointers.
type word = unique.Handle[string]

// pair is a label.
type pair struct{ key, value word }

// labelSet is the labels of a namespace or a pod, shared by all that have the same.
type labelSet struct {
	key   string // canonical, see labelKey
	pairs []pair // in the order of the keys
	refs  int
}

// get returns the value of a label.
func (l *labelSet) get(key word) (word, bool) {
	for _, p := range l.pairs { // a handful
		if p.key == key {
			return p.value, true
		}
	}
	return word{}, false
}

// labelTable has the label sets that are in use.
type labelTable struct {
	sets map[string]*labelSet
	keys []string // scratch
	buf  []byte   // scratch
}

// acquire returns the set for labels.
func (t *labelTable) acquire(labels map[string]string) *labelSet {
	t.keys = t.keys[:0]
	for k := range labels {
		t.keys = append(t.keys, k)
	}
	slices.Sort(t.keys)
	t.buf = t.buf[:0]
	for _, k := range t.keys { // neither keys nor values contain a zero byte
		t.buf = append(append(append(append(t.buf, k...), 0), labels[k]...), 0)
	}
	l := t.sets[string(t.buf)]
	if l == nil {
		l = &labelSet{key: string(t.buf), pairs: make([]pair, 0, len(labels))}
		for _, k := range t.keys {
			l.pairs = append(l.pairs, pair{unique.Make(k), unique.Make(labels[k])})
		}
		t.sets[l.key] = l
	}
	l.refs++
	return l
}

func (t *labelTable) release(l *labelSet) {
	if l.refs--; l.refs == 0 {
		delete(t.sets, l.key)
	}
}

// portSet is the named ports of a pod, shared by all that have the same.
type portSet struct {
	key   string
	ports []NamedPort // sorted, without duplicates
	refs  int
}

type portTable struct {
	sets map[string]*portSet
}

func (t *portTable) acquire(ports []NamedPort) *portSet {
	if len(ports) > 0 {
		ports = slices.Clone(ports)
		slices.SortFunc(ports, compareNamedPorts)
		ports = slices.Compact(ports)
	}
	var key strings.Builder
	for _, p := range ports {
		key.WriteString(namedPortKey(p))
		key.WriteByte(0)
	}
	s := t.sets[key.String()]
	if s == nil {
		s = &portSet{key: key.String(), ports: ports}
		t.sets[s.key] = s
	}
	s.refs++
	return s
}

func (t *portTable) release(s *portSet) {
	if s.refs--; s.refs == 0 {
		delete(t.sets, s.key)
	}
}
