// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import "slices"

// openNamespace reports whether no policy can select a pod of a namespace, whatever the pod's labels are. That its labels are known is
// part of it, because policies of the cluster ask for them.
func (e *Engine) openNamespace(name string) bool {
	ns := e.namespaces[name]
	return ns != nil && ns.known && len(ns.policies) == 0 &&
		!slices.ContainsFunc(e.cluster, func(p *policy) bool { return p.subject.matchesNamespace(ns) })
}

// closeNamespaces takes out the namespaces that a policy selects pods of now. A pod of it that is not in the table of pods yet waits
// from here on.
func (e *Engine) closeNamespaces() {
	for name := range e.dirtyNamespaces {
		if _, written := e.open[name]; written && !e.openNamespace(name) {
			delete(e.open, name)
			e.emit(DeleteNamespace{name})
		}
	}
}

// openNamespaces writes the namespaces that no policy selects pods of any more, when the pods that are known have their sets.
func (e *Engine) openNamespaces() {
	for name := range e.dirtyNamespaces {
		if _, written := e.open[name]; !written && e.openNamespace(name) {
			e.open[name] = struct{}{}
			e.emit(WriteNamespace{name})
		}
	}
	renew(&e.dirtyNamespaces)
}
