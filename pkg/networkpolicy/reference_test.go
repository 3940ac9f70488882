// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"cmp"
	"net/netip"
	"slices"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// world is objects, read literally: nothing is compiled, indexed or remembered. It is slow, and judges the engine.
type world struct {
	node        string
	podNetworks []netip.Prefix
	namespaces  map[string]Namespace
	pods        map[string]Pod
	policies    map[policyName]Policy
	nodes       []netip.Addr
}

type policyName struct{ namespace, name string }

func newWorld(node string, podNetworks ...netip.Prefix) *world {
	return &world{node: node, podNetworks: podNetworks, namespaces: map[string]Namespace{}, pods: map[string]Pod{}, policies: map[policyName]Policy{}}
}

// engine returns a new engine that is told everything at once.
func (w *world) engine() *Engine {
	e := New(Config{Node: w.node, PodNetworks: w.podNetworks})
	for _, p := range w.pods {
		e.UpsertPod(p)
	}
	for _, p := range w.policies {
		e.UpsertPolicy(p)
	}
	for _, n := range w.namespaces {
		e.UpsertNamespace(n)
	}
	e.SetNodeAddrs(w.nodes)
	return e
}

// open reports whether nothing selects a pod of a namespace, whatever its labels are.
func (w *world) open(namespace string) bool {
	ns, known := w.namespaces[namespace]
	for _, p := range w.policies {
		s := p.Subject
		if s.Namespace == namespace || s.Namespace == "" && labelsMatch(s.Namespaces, ns.Labels) {
			return false
		}
	}
	return known
}

func (w *world) isLocal(uid string) bool {
	p, ok := w.pods[uid]
	return ok && p.Node == w.node && !p.HostNetwork && !p.Terminal
}

// owner returns the pod that has an address.
func (w *world) owner(addr netip.Addr) (Pod, bool) {
	var best Pod
	for _, p := range w.pods {
		if p.HostNetwork || p.Terminal || !slices.Contains(p.Addrs, addr) {
			continue
		}
		if best.UID == "" || p.Created.Unix() > best.Created.Unix() {
			best = p
		}
	}
	return best, best.UID != ""
}

// anyone is a peer: a pod, or an address that is no pod's.
type anyone struct {
	addr netip.Addr
	pod  *Pod
	ns   Namespace
}

// verdict is that of one end of a connection.
func (w *world) verdict(uid string, dir Direction, addr netip.Addr, proto Protocol, port uint16) Verdict {
	if !w.isLocal(uid) {
		return Pending
	}
	self := w.pods[uid]
	peer, isPod := w.owner(addr)
	if isPod && peer.UID == uid {
		return Admitted
	}
	ns, known := w.namespaces[self.Namespace]
	if !known {
		return Pending
	}
	inPodNetwork := slices.ContainsFunc(w.podNetworks, func(p netip.Prefix) bool { return p.Contains(addr) })
	who := anyone{addr: addr}
	switch {
	case isPod:
		peerNS, known := w.namespaces[peer.Namespace]
		if !known {
			return w.forAnyPod(self, ns, dir, addr, proto, port)
		}
		who.pod, who.ns = &peer, peerNS
	case inPodNetwork && !slices.Contains(w.nodes, addr):
		return w.forAnyPod(self, ns, dir, addr, proto, port)
	}
	return w.tiers(self, ns, dir, who, proto, port)
}

// anyPod stands for "whatever pod this may be".
var anyPod = Pod{UID: "any"}

// forAnyPod asks twice: rules that accept do not match a pod that is not known, and those that deny do. A Pass may match, so both ways
// have to end in acceptance.
func (w *world) forAnyPod(self Pod, ns Namespace, dir Direction, addr netip.Addr, proto Protocol, port uint16) Verdict {
	return w.tiers(self, ns, dir, anyone{addr: addr, pod: &anyPod}, proto, port)
}

func (w *world) selected(self Pod, ns Namespace, tier Tier) []Policy {
	var out []Policy
	for _, p := range w.policies {
		if p.Tier == tier && selects(p.Subject, self, ns) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Policy) int { return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name)) })
	return out
}

func (w *world) tiers(self Pod, ns Namespace, dir Direction, who anyone, proto Protocol, port uint16) Verdict {
	below := func() Verdict {
		isolated := false
		for _, p := range w.selected(self, ns, NetworkPolicies) {
			if !p.Isolates[dir] {
				continue
			}
			isolated = true
			for _, r := range p.Rules[dir] {
				if ruleMatches(r, Accept, self, dir, who, proto, port) {
					return Admitted
				}
			}
		}
		if isolated {
			return Denied
		}
		return w.tier(self, ns, Baseline, dir, who, proto, port, func() Verdict { return Admitted })
	}
	return w.tier(self, ns, Admin, dir, who, proto, port, below)
}

func (w *world) tier(self Pod, ns Namespace, tier Tier, dir Direction, who anyone, proto Protocol, port uint16, below func() Verdict) Verdict {
	passed := false
	for _, p := range w.selected(self, ns, tier) {
		for _, r := range p.Rules[dir] {
			action := r.Action
			if action != Accept && unsupported(r) {
				return Denied
			}
			if !ruleMatches(r, action, self, dir, who, proto, port) {
				continue
			}
			unsure := who.pod == &anyPod && !ruleMatches(r, Accept, self, dir, who, proto, port)
			switch {
			case action == Deny:
				return Denied
			case action == Accept && passed:
				return below()
			case action == Accept:
				return Admitted
			case unsure:
				passed = true
			default:
				return below()
			}
		}
	}
	return below()
}

func unsupported(r Rule) bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Unsupported != "" }) ||
		slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Unsupported != "" })
}

// ruleMatches says for Accept whether a rule matches for certain, and for the other actions whether it may.
func ruleMatches(r Rule, as Action, self Pod, dir Direction, who anyone, proto Protocol, port uint16) bool {
	wide := as != Accept
	peers := len(r.Peers) == 0
	for _, p := range r.Peers {
		switch {
		case p.Unsupported != "":
		case p.Block != nil:
			peers = peers || inBlock(*p.Block, who.addr)
		case who.pod == &anyPod:
			peers = peers || wide
		case who.pod != nil:
			peers = peers || selects(*p.Pods, *who.pod, who.ns)
		}
	}
	ports := len(r.Ports) == 0
	for _, p := range r.Ports {
		switch {
		case p.Unsupported != "":
		case proto != TCP && proto != UDP && proto != SCTP, p.Protocol != AnyProtocol && p.Protocol != proto:
		case p.Name == "":
			ports = ports || p.First <= port && port <= p.Last
		case dir == Ingress:
			ports = ports || slices.Contains(self.Ports, NamedPort{p.Name, proto, port})
		case who.pod == &anyPod:
			ports = ports || wide
		case who.pod != nil:
			ports = ports || slices.Contains(who.pod.Ports, NamedPort{p.Name, proto, port})
		}
	}
	return peers && ports
}

func inBlock(b Block, addr netip.Addr) bool {
	if !b.CIDR.Masked().Contains(addr) {
		return false
	}
	for _, e := range b.Except {
		if e.Masked().Contains(addr) {
			return false
		}
	}
	return true
}

func selects(s PodSelector, p Pod, ns Namespace) bool {
	if s.Namespace != "" {
		return ns.Name == s.Namespace && labelsMatch(s.Pods, p.Labels)
	}
	return labelsMatch(s.Namespaces, ns.Labels) && labelsMatch(s.Pods, p.Labels)
}

func labelsMatch(s Selector, labels map[string]string) bool {
	for _, r := range s {
		v, ok := labels[r.Key]
		met := false
		switch r.Operator {
		case In:
			met = ok && slices.Contains(r.Values, v)
		case NotIn:
			met = !ok || !slices.Contains(r.Values, v)
		case Exists:
			met = ok
		case DoesNotExist:
			met = !ok
		}
		if !met {
			return false
		}
	}
	return true
}
