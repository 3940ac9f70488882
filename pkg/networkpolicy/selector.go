// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"slices"
	"strconv"
	"strings"
	"unique"
)

// Operator is how a requirement of a selector reads a label.
type Operator uint8

// The operators of Kubernetes' label selectors. NotIn and DoesNotExist match where the label is absent.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
)

// Requirement is one condition of a selector. Any other operator than those of this package matches nothing.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string // for In and NotIn
}

// Selector matches labels that meet all of its requirements. An empty one matches all labels.
type Selector []Requirement

// compiledSelector is a Selector with interned words.
type compiledSelector struct {
	key  string // canonical: equal for selectors with the same requirements in whatever order
	reqs []compiledRequirement
}

type compiledRequirement struct {
	key    word
	op     Operator
	values []word
}

func compileSelector(s Selector) compiledSelector {
	var c compiledSelector
	keys := make([]string, 0, len(s))
	for _, r := range s {
		values := slices.Compact(slices.Sorted(slices.Values(r.Values)))
		if r.Operator != In && r.Operator != NotIn {
			values = nil
		}
		var key strings.Builder
		key.WriteString(strconv.Quote(r.Key))
		key.WriteString([...]string{" in", " notin", " exists", " absent", " never"}[min(r.Operator, DoesNotExist+1)])
		compiled := compiledRequirement{key: unique.Make(r.Key), op: r.Operator}
		for _, v := range values {
			key.WriteByte(' ')
			key.WriteString(strconv.Quote(v))
			compiled.values = append(compiled.values, unique.Make(v))
		}
		keys = append(keys, key.String())
		c.reqs = append(c.reqs, compiled)
	}
	slices.Sort(keys)
	c.key = strings.Join(slices.Compact(keys), ",")
	return c
}

func (c *compiledSelector) matches(l *labelSet) bool {
	for i := range c.reqs {
		if !c.reqs[i].matches(l) {
			return false
		}
	}
	return true
}

func (r *compiledRequirement) matches(l *labelSet) bool {
	value, found := l.get(r.key)
	switch r.op {
	case In:
		return found && slices.Contains(r.values, value)
	case NotIn:
		return !found || !slices.Contains(r.values, value)
	case Exists:
		return found
	case DoesNotExist:
		return !found
	}
	return false
}

// pairs returns labels of which one is in everything that the selector matches, for an index; nothing if there are none.
func (c *compiledSelector) pairs() []pair {
	var best []pair
	for _, r := range c.reqs {
		if r.op != In || best != nil && len(r.values) >= len(best) {
			continue
		}
		best = []pair{}
		for _, v := range r.values {
			best = append(best, pair{r.key, v})
		}
	}
	return best
}
