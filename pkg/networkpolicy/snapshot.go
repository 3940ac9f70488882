// SPDX-License-Identifier: Apache-2.0

package networkpolicy

// Snapshot commits, and returns all that the tables have then, for tables that are empty: those of a caller that has just started, or
// whose tables may have lost a change. It has everything of the batches before it that was not applied, so they need not settle.
//
// What the addresses were in other tables is not known. So each is said to lose, and connections are asked again.
func (e *Engine) Snapshot() Batch {
	b := e.Commit()
	e.writeClosedSet()
	for _, c := range e.classes.byKey {
		for i := range c.chunks {
			e.classes.write(c, i)
		}
	}
	for _, s := range e.sets.byKey {
		e.writeSet(s)
	}
	for p, c := range e.cidrs {
		e.emit(WriteCIDR{p, c.id})
	}
	for p := range e.services {
		e.emit(WriteService{p})
	}
	for a, rec := range e.addrs {
		if rec.class != unwritten {
			e.emit(WritePeer{a.netip(), rec.class, rec.owner, true})
		}
	}
	for _, l := range e.local {
		e.emit(WritePod{l.uid, l.set})
	}
	for name := range e.open {
		e.emit(WriteNamespace{name})
	}
	b.Changes, e.changes = e.changes, nil
	return b
}

// RetainPods forgets the pods that a complete list of them does not have. listed is asked for keys as PodKey returns them.
func (e *Engine) RetainPods(listed func(key uint64) bool) {
	for key := range e.pods {
		if !listed(key.number()) {
			e.deletePod(key)
		}
	}
}

// RetainNamespaces forgets the namespaces that a complete list of them does not have.
func (e *Engine) RetainNamespaces(listed func(name string) bool) {
	for name, ns := range e.namespaces {
		if ns.known && !listed(name) {
			e.DeleteNamespace(name)
		}
	}
}

// RetainPolicies forgets the policies of namespaces that a complete list of them does not have. Those of the cluster stay.
func (e *Engine) RetainPolicies(listed func(namespace, name string) bool) {
	for namespace, ns := range e.namespaces {
		for name := range ns.policies {
			if !listed(namespace, name) {
				e.DeletePolicy(namespace, name)
			}
		}
	}
}
