// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"cmp"
	"slices"
)

// policy is a Policy with its selectors compiled. It is never changed: another version is another one.
type policy struct {
	Policy
	subject compiledPodSelector
	rules   [2][]rule
	atoms   []*atom // acquired
}

// rule is a Rule without what cannot be told.
type rule struct {
	index   int // in the object
	action  Action
	anyPeer bool
	peers   []*atom
	anyPort bool
	ports   []Port
	tier    Tier
}

func compilePolicy(p Policy, atoms atomTable) *policy {
	c := &policy{Policy: p, subject: compilePodSelector(p.Subject)}
	for _, dir := range directions {
		for i, r := range p.Rules[dir] {
			out := rule{index: i, action: r.Action, tier: p.Tier}
			if p.Tier == NetworkPolicies {
				out.action = Accept
			}
			c.compilePeers(&out, r.Peers, atoms)
			out.compilePorts(r.Ports)
			if out.action != Accept && r.unsupported() {
				out = rule{index: i, action: Deny, anyPeer: true, anyPort: true, tier: p.Tier}
			}
			if (out.anyPeer || len(out.peers) > 0) && (out.anyPort || len(out.ports) > 0) {
				c.rules[dir] = append(c.rules[dir], out)
			}
		}
	}
	c.Rules = [2][]Rule{}
	return c
}

func (r *Rule) unsupported() bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Unsupported != "" }) ||
		slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Unsupported != "" })
}

func (c *policy) compilePeers(out *rule, peers []Peer, atoms atomTable) {
	out.anyPeer = len(peers) == 0
	for _, p := range peers {
		var a *atom
		switch {
		case p.Unsupported != "":
		case p.Pods != nil:
			a = atoms.forPods(*p.Pods)
		case p.Block != nil:
			a = atoms.forBlock(*p.Block)
		}
		if a != nil {
			out.peers = append(out.peers, a)
			c.atoms = append(c.atoms, a)
		}
	}
}

func (r *rule) compilePorts(ports []Port) {
	r.anyPort = len(ports) == 0
	for _, p := range ports {
		if p.Unsupported == "" && (p.Name != "" || p.Protocol.hasPorts() && p.First <= p.Last) {
			r.ports = append(r.ports, p)
		}
	}
}

func (c *policy) release(atoms atomTable) {
	for _, a := range c.atoms {
		atoms.release(a)
	}
	c.atoms = nil
}

// selects reports whether the policy is about pods of a kind; its namespace has to be known.
func (c *policy) selects(k *kind) bool { return c.subject.matches(k) }

// order is that of evaluation; between NetworkPolicies it means nothing.
func (c *policy) order(o *policy) int {
	return cmp.Or(cmp.Compare(c.Tier, o.Tier), cmp.Compare(c.Priority, o.Priority), cmp.Compare(c.Namespace, o.Namespace), cmp.Compare(c.Name, o.Name))
}

// span is a range of ports, both ends included.
type span struct{ first, last uint16 }

// directionCompiler makes the segments of one direction of a kind of pods.
type directionCompiler struct {
	dir      Direction
	isolated bool
	rules    []rule // of the policies that select the kind, in the order of evaluation
	local    *portSet
	// named returns the ports with a name that pods give that match one of the peers.
	named func(r *rule, p Port) []NamedPort
	atoms atomTable
}

// flatRule is a rule with its names resolved.
type flatRule struct {
	*rule
	ranges [len(protocols)][]span
	named  []NamedPort // what peers may mean by the rule's names
	byName [len(protocols)]bool
}

// draft is a segment whose program is not shared yet.
type draft struct {
	protocol Protocol
	span     span
	program  *program
}

// compile returns the segments, the last of which is everything that no other one is about.
func (c *directionCompiler) compile() []draft {
	flat := make([]flatRule, 0, len(c.rules))
	for i := range c.rules {
		flat = append(flat, c.flatten(&c.rules[i]))
	}
	rest := draft{program: c.program(flat, -1, span{})}
	var out []draft
	for i, proto := range protocols {
		for _, s := range pieces(flat, i) {
			p := c.program(flat, i, s)
			last := len(out) - 1
			if last >= 0 && out[last].protocol == proto && out[last].span.last+1 == s.first && out[last].program.key == p.key {
				out[last].span.last = s.last
				continue
			}
			out = append(out, draft{proto, s, p})
		}
	}
	out = slices.DeleteFunc(out, func(d draft) bool { return d.program.key == rest.program.key })
	return append(out, rest)
}

func (c *directionCompiler) flatten(r *rule) flatRule {
	f := flatRule{rule: r}
	for _, p := range r.ports {
		switch {
		case p.Name == "":
			f.addRange(p.Protocol, span{p.First, p.Last})
		case c.dir == Ingress: // the pod's own names
			for _, n := range c.local.ports {
				if n.Name == p.Name && (p.Protocol == AnyProtocol || p.Protocol == n.Protocol) {
					f.addRange(n.Protocol, span{n.Number, n.Number})
				}
			}
		default:
			f.named = append(f.named, c.named(r, p)...)
			for i, proto := range protocols {
				f.byName[i] = f.byName[i] || p.Protocol == AnyProtocol || p.Protocol == proto
			}
		}
	}
	return f
}

func (f *flatRule) addRange(proto Protocol, s span) {
	if i := slices.Index(protocols[:], proto); i >= 0 {
		f.ranges[i] = append(f.ranges[i], s)
	}
}

// pieces cuts the ports of a protocol at every border that a rule has.
func pieces(flat []flatRule, proto int) []span {
	starts := []int{0, 1 << 16}
	for i := range flat {
		for _, s := range flat[i].ranges[proto] {
			starts = append(starts, int(s.first), int(s.last)+1)
		}
		for _, n := range flat[i].named {
			if n.Protocol == protocols[proto] {
				starts = append(starts, int(n.Number), int(n.Number)+1)
			}
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	spans := make([]span, 0, len(starts)-1)
	for i := range len(starts) - 1 {
		spans = append(spans, span{uint16(starts[i]), uint16(starts[i+1] - 1)})
	}
	return spans
}

// program is the verdict for ports of a span that no border cuts; a negative proto is what has no ports.
func (c *directionCompiler) program(flat []flatRule, proto int, s span) *program {
	p := &program{isolated: c.isolated}
	for i := range flat {
		conds := c.conds(&flat[i], proto, s)
		if len(conds) == 0 {
			continue
		}
		switch flat[i].tier {
		case Admin:
			p.admin = append(p.admin, step{action: flat[i].action, conds: conds})
		case NetworkPolicies:
			p.allow = append(p.allow, conds...)
		case Baseline:
			p.base = append(p.base, step{action: flat[i].action, conds: conds})
		}
	}
	p.normalize()
	return p
}

// conds is what a rule asks of a peer for ports of the span.
func (c *directionCompiler) conds(f *flatRule, proto int, s span) []cond {
	if f.anyPort || proto >= 0 && slices.ContainsFunc(f.ranges[proto], func(r span) bool { return r.first <= s.first && s.last <= r.last }) {
		return f.peerConds(nil, nil)
	}
	var conds []cond
	for _, n := range f.named {
		if proto >= 0 && n.Protocol == protocols[proto] && s == (span{n.Number, n.Number}) {
			conds = f.peerConds(conds, c.atoms.forPort(n))
		}
	}
	if proto >= 0 && f.byName[proto] && f.action != Accept {
		conds = f.peerConds(conds, c.atoms.forUnknown()) // such a pod may give the name to any port
	}
	return conds
}

func (f *flatRule) peerConds(conds []cond, port *atom) []cond {
	if f.anyPeer {
		return append(conds, cond{port: port})
	}
	for _, a := range f.peers {
		conds = append(conds, cond{peer: a, port: port})
	}
	return conds
}
