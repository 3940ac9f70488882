// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "slices"

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
