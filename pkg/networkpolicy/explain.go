// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"slices"
)

// Reason is why a verdict is what it is.
type Reason uint8

// The reasons.
const (
	NotLocal     Reason = iota // the pod is not one of this node
	OwnAddress                 // the peer is the pod itself
	NotSelected                // no policy selects the pod in this direction, or none that does says anything about the connection
	ByRule                     // Rules decided
	NoRule                     // NetworkPolicies isolate the pod, and none of their rules accepts
	PeerUnknown                // the address may be a pod's, and what Rules say depends on that pod
	NotSupported               // the pod has ClosedSet; Problem says why
)

// RuleRef names a rule of an object.
type RuleRef struct {
	Tier      Tier
	Namespace string // of the policy
	Name      string
	Index     int // in the list of rules of the direction; -1 if the object is meant as a whole
	Action    Action
}

// Decision is a verdict with what decided it. All rules of NetworkPolicies that accept a connection are named. In the other tiers it is
// the one that was first.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Rules   []RuleRef
	Problem string
}

// Explain says what decides about a connection of a pod of this node, by the objects as they are now. It reads no table, so it also
// serves as a check of them.
func (e *Engine) Explain(uid string, dir Direction, peer netip.Addr, proto Protocol, port uint16) Decision {
	l := e.local[keyOf(uid)]
	if l == nil {
		return Decision{Verdict: Pending, Reason: NotLocal}
	}
	v := e.view(peer)
	if v.pod == l.pod {
		return Decision{Verdict: Admitted, Reason: OwnAddress}
	}
	k := l.pod.kind
	if !k.ns.known {
		return Decision{Verdict: Pending, Reason: NotSupported, Problem: errNamespace.Error()}
	}
	if k.err != nil {
		return Decision{Verdict: Pending, Reason: NotSupported, Problem: k.err.Error()}
	}
	return (&trial{policies: e.policiesOf(k), local: k.ports, dir: dir, peer: v, proto: proto, port: port}).decide()
}

// peerView is what is known of a peer.
type peerView struct {
	addr    netip.Addr // after Unmap
	pod     *pod       // nil if it is no pod that is known
	unknown bool       // it may be a pod that is not known
}

func (e *Engine) view(peer netip.Addr) peerView {
	wide := addr16(peer.As16())
	v := peerView{addr: peer.Unmap(), pod: e.addrs[wide].pod}
	_, isNode := e.nodes[wide]
	switch {
	case v.pod != nil:
		v.unknown = !v.pod.kind.ns.known
	case !isNode:
		r := e.regions.find(wide.netip())
		v.unknown = r != nil && r.pods
	}
	return v
}

// ask answers from the objects.
func (v peerView) ask(a *atom) answer {
	matches := false
	switch {
	case a.kind == blockAtom:
		matches = a.contains(v.addr)
	case v.unknown:
		return maybe
	case v.pod == nil:
	case a.kind == portAtom:
		matches = slices.Contains(v.pod.kind.ports.ports, a.port)
	default:
		matches = a.pods.matches(v.pod.kind)
	}
	if matches {
		return yes
	}
	return no
}

// trial is one connection and the policies of the pod.
type trial struct {
	policies []*policy
	local    *portSet
	dir      Direction
	peer     peerView
	proto    Protocol
	port     uint16
}

// matches says whether a rule is about the connection.
func (t *trial) matches(r *rule) answer {
	best := no
	if r.anyPeer {
		best = yes
	}
	for _, a := range r.peers {
		best = max(best, t.peer.ask(a))
	}
	if r.anyPort {
		return best
	}
	ports := no
	for _, p := range r.ports {
		ports = max(ports, t.portMatches(p))
	}
	return min(best, ports)
}

func (t *trial) portMatches(p Port) answer {
	if p.Protocol != AnyProtocol && p.Protocol != t.proto || !t.proto.hasPorts() {
		return no
	}
	if p.Name == "" {
		if p.First <= t.port && t.port <= p.Last {
			return yes
		}
		return no
	}
	names := t.local
	if t.dir == Egress {
		switch {
		case t.peer.unknown:
			return maybe
		case t.peer.pod == nil:
			return no
		}
		names = t.peer.pod.kind.ports
	}
	if slices.Contains(names.ports, NamedPort{p.Name, t.proto, t.port}) {
		return yes
	}
	return no
}

func (t *trial) decide() Decision {
	var unsure []RuleRef // rules that decide if the peer is what nobody knows
	for _, tier := range []Tier{Admin, NetworkPolicies, Baseline} {
		d, done := t.tier(tier, &unsure)
		if !done {
			continue
		}
		if d.Verdict == Denied && len(unsure) > 0 && d.Reason != PeerUnknown {
			d.Reason, d.Rules = PeerUnknown, append(unsure, d.Rules...)
		}
		return d
	}
	return Decision{Verdict: Admitted, Reason: NotSelected}
}

// tier returns a decision, false if the tier leaves it to the next one.
func (t *trial) tier(tier Tier, unsure *[]RuleRef) (Decision, bool) {
	if tier == NetworkPolicies {
		return t.networkPolicies(unsure)
	}
	passed := false // perhaps
	for _, p := range t.policies {
		if p.Tier != tier {
			continue
		}
		for i := range p.rules[t.dir] {
			r := &p.rules[t.dir][i]
			a := t.matches(r)
			if a == no {
				continue
			}
			ref := []RuleRef{p.ref(r.index, r.action)}
			if a == maybe {
				*unsure = append(*unsure, ref...)
			}
			switch {
			case r.action == Deny && a == maybe:
				return Decision{Denied, PeerUnknown, *unsure, ""}, true
			case r.action == Deny:
				return Decision{Denied, ByRule, ref, ""}, true
			case a == maybe && r.action == Pass:
				passed = passed || tier == Admin
			case a == maybe:
			case r.action == Accept && !passed:
				return Decision{Admitted, ByRule, ref, ""}, true
			case tier == Admin: // passed for sure, or what the tiers below say has to be acceptance too
				return Decision{}, false
			default:
				return Decision{Admitted, ByRule, ref, ""}, true
			}
		}
	}
	return Decision{}, false
}

func (t *trial) networkPolicies(unsure *[]RuleRef) (Decision, bool) {
	var accepting, isolating []RuleRef
	for _, p := range t.policies {
		if p.Tier != NetworkPolicies || !p.Isolates[t.dir] {
			continue
		}
		isolating = append(isolating, p.ref(-1, Deny))
		for i := range p.rules[t.dir] {
			r := &p.rules[t.dir][i]
			switch t.matches(r) {
			case yes:
				accepting = append(accepting, p.ref(r.index, Accept))
			case maybe:
				*unsure = append(*unsure, p.ref(r.index, Accept))
			}
		}
	}
	switch {
	case len(isolating) == 0:
		return Decision{}, false
	case len(accepting) > 0:
		return Decision{Admitted, ByRule, accepting, ""}, true
	}
	return Decision{Denied, NoRule, isolating, ""}, true
}

func (c *policy) ref(index int, a Action) RuleRef {
	return RuleRef{Tier: c.Tier, Namespace: c.Namespace, Name: c.Name, Index: index, Action: a}
}
