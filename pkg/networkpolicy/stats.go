// SPDX-License-Identifier: Apache-2.0

package networkpolicy

// Problem is a pod of this node that has ClosedSet.
type Problem struct {
	UID string
	Why string
}

// Problems returns the pods that are closed because of what is unknown or does not fit, after the last commit.
func (e *Engine) Problems() []Problem {
	var out []Problem
	for _, l := range e.local {
		if err := l.pod.kind.err; err != nil {
			out = append(out, Problem{l.uid, err.Error()})
		}
	}
	return out
}

// Stats is how much an engine has.
type Stats struct {
	Pods, Kinds, Classes, Prefixes, Sets, Points, Local int
	Policies                                            int
	Namespaces                                          int // whose pods no policy can select
}

// Stats counts what there is after the last commit. Maps have to have room for it: an address each for Pods, and a chunk of bits for
// each class and each ChunkBits of Points.
func (e *Engine) Stats() Stats {
	policies := len(e.cluster)
	for _, ns := range e.namespaces {
		policies += len(ns.policies)
	}
	return Stats{
		Pods: len(e.pods), Kinds: len(e.kinds), Classes: len(e.classes.byKey), Prefixes: len(e.cidrs), Sets: len(e.sets.byKey),
		Points: len(e.classes.points), Local: len(e.local), Namespaces: len(e.open), Policies: policies,
	}
}
