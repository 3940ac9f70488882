// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"slices"
)

// Config is what does not change while an engine runs.
type Config struct {
	Node string // the name of the node whose pods get sets
	// PodNetworks are the networks that pods of the cluster have their addresses from. An address of these that no pod is known to
	// have gets only what every pod would get, because it may be that of a pod whose news is still on its way.
	PodNetworks []netip.Prefix
}

// Engine compiles objects into tables. The methods that change objects only note what changed; Commit works it out. An engine is for
// one goroutine at a time.
type Engine struct {
	node     string
	labels   labelTable
	ports    portTable
	atoms    atomTable
	index    atomIndex
	regions  *regions
	cells    *partition
	classes  *classes
	sets     *setTable
	noLabels *labelSet

	namespaces map[string]*namespace
	kinds      map[kindKey]*kind
	byPort     map[string]map[NamedPort]map[*kind]struct{} // by the port's name
	pods       map[podKey]*pod
	addrs      map[addr16]address
	rivals     map[addr16][]*pod // of the pod that has an address
	nodes      map[addr16]struct{}
	services   map[netip.Prefix]struct{}
	cluster    []*policy // policies without a namespace, in their order
	local      map[podKey]*localPod

	cidrs map[netip.Prefix]*class // as written
	open  map[string]struct{}     // namespaces, as written

	// What changed since the last commit.
	changes    []Change
	dirtyKinds map[*kind]struct{} // cell to be found again, or kind to be forgotten
	dirtyAddrs map[addr16]struct{}
	dirtyPods  map[podKey]struct{} // what others may see of them
	staleKinds map[*kind]struct{}  // set to be compiled again
	gone       []*localPod
	started    bool

	dirtyNamespaces map[string]struct{} // whether policies select their pods
}

// namespace has what a Namespace object says, and what is in it.
type namespace struct {
	name     string
	labels   *labelSet
	known    bool // there is an object; without it, nobody knows the labels
	kinds    map[*kind]struct{}
	policies map[string]*policy // of the tier NetworkPolicies
}

// New returns an engine that knows no objects.
func New(c Config) *Engine {
	e := &Engine{
		node: c.Node, labels: labelTable{sets: map[string]*labelSet{}}, ports: portTable{sets: map[string]*portSet{}}, atoms: atomTable{},
		index:      atomIndex{byKey: map[indexKey]map[*atom]struct{}{}, ports: map[NamedPort]*atom{}},
		regions:    newRegions(c.PodNetworks),
		namespaces: map[string]*namespace{}, kinds: map[kindKey]*kind{}, byPort: map[string]map[NamedPort]map[*kind]struct{}{},
		pods: map[podKey]*pod{}, addrs: map[addr16]address{}, rivals: map[addr16][]*pod{}, nodes: map[addr16]struct{}{},
		local: map[podKey]*localPod{}, cidrs: map[netip.Prefix]*class{},
		dirtyKinds: map[*kind]struct{}{}, dirtyAddrs: map[addr16]struct{}{}, dirtyPods: map[podKey]struct{}{},
		staleKinds: map[*kind]struct{}{}, open: map[string]struct{}{}, dirtyNamespaces: map[string]struct{}{},
	}
	e.noLabels = e.labels.acquire(nil)
	e.cells = newPartition(e.moved)
	e.classes = newClasses(e.cells.outside, e.regions.other, e.emit)
	e.sets = newSetTable(e.atoms, e.classes)
	return e
}

func (e *Engine) emit(c Change) { e.changes = append(e.changes, c) }

// UpsertNamespace takes a new or changed namespace.
func (e *Engine) UpsertNamespace(n Namespace) {
	ns := e.namespace(n.Name)
	labels := e.labels.acquire(n.Labels)
	e.labels.release(ns.labels)
	if ns.known && ns.labels == labels {
		return
	}
	ns.labels, ns.known = labels, true
	e.namespaceChanged(ns)
}

// DeleteNamespace forgets a namespace. Pods that are still in it are treated as unknown: what depends on their labels is closed.
func (e *Engine) DeleteNamespace(name string) {
	ns := e.namespaces[name]
	if ns == nil || !ns.known {
		return
	}
	e.labels.release(ns.labels)
	ns.labels, ns.known = e.noLabels, false
	e.noLabels.refs++
	e.namespaceChanged(ns)
	e.forgetNamespace(ns)
}

func (e *Engine) namespace(name string) *namespace {
	ns := e.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name, labels: e.noLabels, kinds: map[*kind]struct{}{}, policies: map[string]*policy{}}
		e.noLabels.refs++
		e.namespaces[name] = ns
	}
	return ns
}

func (e *Engine) forgetNamespace(ns *namespace) {
	if !ns.known && len(ns.kinds) == 0 && len(ns.policies) == 0 {
		e.labels.release(ns.labels)
		delete(e.namespaces, ns.name)
	}
}

func (e *Engine) namespaceChanged(ns *namespace) {
	e.dirtyNamespaces[ns.name] = struct{}{}
	for k := range ns.kinds {
		e.queue(k)
		e.stale(k)
		e.portsChanged(k)
		for _, p := range k.pods {
			e.dirtyPods[p.key] = struct{}{}
		}
	}
}

// queue has the cell of a kind found again.
func (e *Engine) queue(k *kind) { k.queued, e.dirtyKinds[k] = true, struct{}{} }

// stale has the set of a kind compiled again if it has local pods, and given back if it has none any more.
func (e *Engine) stale(k *kind) {
	if k.local > 0 || k.set != nil || k.err != nil {
		k.stale, e.staleKinds[k] = true, struct{}{}
	}
}

// portsChanged has the sets compiled again that need other segments, because a kind comes, goes, or has another namespace around it.
func (e *Engine) portsChanged(changed *kind) {
	for _, p := range changed.ports.ports {
		for _, l := range e.local {
			k := l.pod.kind
			for i := range k.uses {
				if !k.stale && e.outdated(&k.uses[i], changed, p) {
					e.stale(k)
				}
			}
		}
	}
}

// outdated reports whether a use does not know a port that a kind which changed has, or knows it for nothing.
func (e *Engine) outdated(u *namedUse, changed *kind, p NamedPort) bool {
	_, known := u.named[p]
	if u.means(changed, p) {
		return !known
	}
	if known {
		for other := range e.byPort[p.Name][p] {
			if u.means(other, p) {
				return false
			}
		}
	}
	return known
}

// SetNodeAddrs takes the addresses of all nodes, those of their tunnels included. They are no pods', even in a network of pods.
func (e *Engine) SetNodeAddrs(addrs []netip.Addr) {
	old := e.nodes
	e.dirtyPods[podKey{}] = struct{}{}
	e.nodes = map[addr16]struct{}{}
	for _, addr := range addrs {
		a := addr16(addr.As16())
		e.nodes[a] = struct{}{}
		if _, ok := old[a]; !ok {
			e.dirtyAddrs[a] = struct{}{}
		}
		delete(old, a)
	}
	for a := range old {
		e.dirtyAddrs[a] = struct{}{}
	}
}

// SetServices takes the networks whose addresses are those of Services.
func (e *Engine) SetServices(networks []netip.Prefix) {
	old := e.services
	e.services = map[netip.Prefix]struct{}{}
	for _, p := range networks {
		p = p.Masked()
		if _, ok := old[p]; !ok {
			e.emit(WriteService{p})
		}
		delete(old, p)
		e.services[p] = struct{}{}
	}
	for p := range old {
		e.emit(DeleteService{p})
	}
}

// UpsertPolicy takes a new or changed policy. A policy of the tier NetworkPolicies has a namespace, the others have none.
func (e *Engine) UpsertPolicy(p Policy) {
	compiled := compilePolicy(p, e.atoms)
	old := e.takePolicy(p.Namespace, p.Name)
	if p.Namespace != "" {
		e.namespace(p.Namespace).policies[p.Name] = compiled
	} else {
		i, _ := slices.BinarySearchFunc(e.cluster, compiled, (*policy).order)
		e.cluster = slices.Insert(e.cluster, i, compiled)
	}
	e.policyChanged(old, compiled)
}

// DeletePolicy forgets a policy. That of a cluster has no namespace.
func (e *Engine) DeletePolicy(namespace, name string) {
	old := e.takePolicy(namespace, name)
	if old == nil {
		return
	}
	e.policyChanged(old, nil)
	if ns := e.namespaces[namespace]; ns != nil {
		e.forgetNamespace(ns)
	}
}

// takePolicy removes a policy and returns it, nil if there is none.
func (e *Engine) takePolicy(namespace, name string) *policy {
	if namespace == "" {
		i := slices.IndexFunc(e.cluster, func(p *policy) bool { return p.Name == name })
		if i < 0 {
			return nil
		}
		old := e.cluster[i]
		e.cluster = slices.Delete(e.cluster, i, i+1)
		return old
	}
	ns := e.namespaces[namespace]
	if ns == nil {
		return nil
	}
	old := ns.policies[name]
	delete(ns.policies, name)
	return old
}

// policyChanged has the sets of the local pods compiled again that either version selects. Either may be nil.
func (e *Engine) policyChanged(versions ...*policy) {
	for _, l := range e.local {
		k := l.pod.kind
		if !k.stale && slices.ContainsFunc(versions, func(p *policy) bool { return p != nil && (!k.ns.known || p.selects(k)) }) {
			e.stale(k)
		}
	}
	for _, p := range versions {
		switch {
		case p == nil:
		case p.Namespace != "":
			e.dirtyNamespaces[p.Namespace] = struct{}{}
		default:
			for name, ns := range e.namespaces {
				if p.subject.matchesNamespace(ns) {
					e.dirtyNamespaces[name] = struct{}{}
				}
			}
		}
	}
	if old := versions[0]; old != nil {
		old.release(e.atoms)
	}
}
