// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"cmp"
	"slices"
	"strings"
)

// A program is the verdict of all tiers about a peer, for one segment of ports. Its meaning depends on nothing but its text, and its
// text on nothing but atoms. So the bit of a program and a class never changes while both exist, and pods whose policies are written
// differently share what means the same.
type program struct {
	key      string
	admin    []step
	isolated bool   // does a NetworkPolicy select the pod in this direction?
	allow    []cond // of the NetworkPolicies, if it is isolated
	base     []step // if it is not

	refs  int // segments of sets that have it
	point Point
}

// step is one rule of the tiers Admin and Baseline.
type step struct {
	action Action
	any    bool   // matches everybody
	conds  []cond // one of them has to match otherwise
}

// cond asks for a peer and, if the rule names a port, that the peer gives this name to the port.
type cond struct {
	peer *atom // nil matches everybody
	port *atom // nil asks nothing
}

func (c cond) key() string {
	switch {
	case c.port == nil && c.peer == nil:
		return "any"
	case c.port == nil:
		return c.peer.key
	case c.peer == nil:
		return c.port.key
	}
	return c.peer.key + " & " + c.port.key
}

func (c cond) any() bool { return c.peer == nil && c.port == nil }

// The texts of the two programs that ask nothing.
const (
	acceptKey = "accept"
	denyKey   = "deny"
)

// normalize brings a program into the shortest form, and writes its key.
func (p *program) normalize() {
	p.admin = trimSteps(p.admin, func(a Action) bool { return a == Pass }) // the tier ends there in any case
	p.base = trimSteps(p.base, func(a Action) bool { return a != Deny })   // what no rule denies is accepted
	p.allow = sortConds(p.allow)
	if slices.ContainsFunc(p.allow, cond.any) {
		p.allow = []cond{{}}
	}
	if p.isolated {
		p.base = nil
	} else {
		p.allow = nil
	}
	if n := len(p.admin); n > 0 && p.admin[n-1].any && !slices.ContainsFunc(p.admin, func(s step) bool { return s.action == Pass }) {
		*p = program{admin: p.admin} // nothing gets below
	}
	p.key = p.text()
}

// trimSteps drops what is never reached, and what changes nothing at the end of its tier.
func trimSteps(steps []step, idle func(Action) bool) []step {
	var kept []step
	for _, s := range steps {
		s.conds = sortConds(s.conds)
		if slices.ContainsFunc(s.conds, cond.any) {
			s.any = true
		}
		if s.any {
			s.conds = nil
		}
		if s.any || len(s.conds) > 0 {
			kept = append(kept, s)
		}
		if s.any {
			break
		}
	}
	for len(kept) > 0 && idle(kept[len(kept)-1].action) {
		kept = kept[:len(kept)-1]
	}
	return kept
}

func sortConds(conds []cond) []cond {
	conds = slices.Clone(conds)
	slices.SortFunc(conds, func(a, b cond) int { return cmp.Compare(a.key(), b.key()) })
	return slices.CompactFunc(conds, func(a, b cond) bool { return a.key() == b.key() })
}

func (p *program) text() string {
	open := !p.isolated && len(p.base) == 0 || p.isolated && len(p.allow) == 1 && p.allow[0].any()
	switch {
	case len(p.admin) == 0 && open, len(p.admin) > 0 && p.admin[0].any && p.admin[0].action == Accept:
		return acceptKey
	case len(p.admin) == 0 && p.isolated && len(p.allow) == 0,
		len(p.admin) > 0 && p.admin[0].any && p.admin[0].action == Deny,
		len(p.admin) == 0 && len(p.base) > 0 && p.base[0].any: // not Accept: that was trimmed
		return denyKey
	}
	var b strings.Builder
	writeSteps(&b, p.admin)
	if p.isolated {
		b.WriteString("allow{")
		writeConds(&b, p.allow)
		b.WriteString("}")
	}
	writeSteps(&b, p.base)
	return b.String()
}

func writeSteps(b *strings.Builder, steps []step) {
	for _, s := range steps {
		b.WriteString(s.action.String())
		if s.any {
			b.WriteString(" any")
		}
		b.WriteString("{")
		writeConds(b, s.conds)
		b.WriteString("}")
	}
	b.WriteString("/")
}

func writeConds(b *strings.Builder, conds []cond) {
	for _, c := range conds {
		b.WriteString(c.key())
		b.WriteString("; ")
	}
}

// atoms calls f for each atom that the program asks, as often as it asks.
func (p *program) atoms(f func(*atom)) {
	conds := func(list []cond) {
		for _, c := range list {
			if c.peer != nil {
				f(c.peer)
			}
			if c.port != nil {
				f(c.port)
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

// answer is what is known of a condition. The pod behind an address of the pods' networks may be unknown, and then nobody can say
// what its labels are.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

// asker answers what programs ask about one peer.
type asker interface{ ask(*atom) answer }

func (c cond) ask(peer asker) answer {
	a := yes
	if c.peer != nil {
		a = peer.ask(c.peer)
	}
	if c.port != nil {
		a = min(a, peer.ask(c.port))
	}
	return a
}

func askAll(conds []cond, peer asker) answer {
	best := no
	for _, c := range conds {
		if best = max(best, c.ask(peer)); best == yes {
			break
		}
	}
	return best
}

// admits is true only if the peer is accepted whatever the truth about "maybe" is.
func (p *program) admits(peer asker) bool {
	restToo := false // a Pass that may be: what comes after the tier has to accept as well
	for _, s := range p.admin {
		a := yes
		if !s.any {
			a = askAll(s.conds, peer)
		}
		switch {
		case a == no, a == maybe && s.action == Accept:
		case s.action == Deny:
			return false
		case s.action == Accept:
			return !restToo || p.admitsBelow(peer)
		case a == yes:
			return p.admitsBelow(peer)
		default:
			restToo = true
		}
	}
	return p.admitsBelow(peer)
}

// admitsBelow is the verdict of the tiers below Admin.
func (p *program) admitsBelow(peer asker) bool {
	if p.isolated {
		return askAll(p.allow, peer) == yes
	}
	for _, s := range p.base {
		a := yes
		if !s.any {
			a = askAll(s.conds, peer)
		}
		switch {
		case a == no, a == maybe && s.action != Deny:
		case s.action == Deny:
			return false
		default:
			return true // nothing is below this tier, so Pass accepts
		}
	}
	return true
}
