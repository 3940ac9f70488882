// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// sets returns an empty table, and a function that makes the meaning "accept from one block".
func setsOfBlocks() (*setTable, func(i int) [2][]draft) {
	e := New(Config{})
	return e.sets, func(i int) [2][]draft {
		a := e.atoms.forBlock(Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)})
		p := &program{isolated: true, allow: []cond{{peer: a}}}
		p.normalize()
		open := &program{}
		open.normalize()
		return [2][]draft{{{program: p}}, {{program: open}}}
	}
}

func TestPointsRunOut(t *testing.T) {
	sets, meaning := setsOfBlocks()
	sets.classes.pointNo.last = firstPoint + 1
	for i := range 2 {
		if _, err := sets.acquire(meaning(i)); err != nil {
			t.Fatal(err)
		}
	}
	before := fmt.Sprint(len(sets.byKey), len(sets.programs), len(sets.newAtoms))
	if _, err := sets.acquire(meaning(3)); !errors.Is(err, errPoints) {
		t.Errorf("error %v, want %v", err, errPoints)
	}
	if after := fmt.Sprint(len(sets.byKey), len(sets.programs), len(sets.newAtoms)); after != before {
		t.Errorf("a set that does not fit leaves something behind: %s, before %s", after, before)
	}
}

// A pod that is closed because no number is left gets its set when there is one.
func TestClosedForWantOfANumber(t *testing.T) {
	e := New(Config{Node: "here"})
	e.sets.classes.pointNo.last = firstPoint
	e.UpsertNamespace(Namespace{Name: "n"})
	for i, name := range []string{"a", "b"} {
		e.UpsertPod(Pod{UID: name, Namespace: "n", Node: "here", Labels: map[string]string{"app": name}})
		p := Policy{Namespace: "n", Name: name, Tier: NetworkPolicies, Isolates: [2]bool{true, false}}
		p.Subject = PodSelector{Namespace: "n", Pods: Selector{{Key: "app", Operator: In, Values: []string{name}}}}
		p.Rules[Ingress] = []Rule{{Peers: []Peer{{Block: &Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)}}}}}
		e.UpsertPolicy(p)
		e.Settled(e.Commit())
	}
	if got := e.Problems(); len(got) != 1 || got[0].UID != "b" {
		t.Fatalf("problems %+v", got)
	}
	e.DeletePolicy("n", "a")
	e.Settled(e.Commit())
	e.Commit()
	if got := e.Problems(); len(got) != 0 || e.local[keyOf("b")].set < firstSet {
		t.Errorf("problems %+v", got)
	}
}

// Policies that are written differently and mean the same have the same text.
func TestProgramsNormalize(t *testing.T) {
	atoms := atomTable{}
	a, b := atoms.forPods(PodSelector{Namespace: "a"}), atoms.forPods(PodSelector{Namespace: "b"})
	ca, cb := cond{peer: a}, cond{peer: b}
	for name, pair := range map[string][2]program{
		"order and doubles":                  {{isolated: true, allow: []cond{ca, cb, ca}}, {isolated: true, allow: []cond{cb, ca}}},
		"everybody and somebody":             {{isolated: true, allow: []cond{ca, {}}}, {}},
		"a Pass at the end":                  {{admin: []step{{action: Accept, conds: []cond{ca}}, {action: Pass, conds: []cond{cb}}}}, {admin: []step{{action: Accept, conds: []cond{ca}}}}},
		"after a rule for everybody":         {{admin: []step{{action: Deny, conds: []cond{{}}}, {action: Accept, conds: []cond{cb}}}, isolated: true}, {isolated: true}},
		"below a tier that decides":          {{admin: []step{{action: Accept, conds: []cond{ca}}, {action: Deny, any: true}}, base: []step{{action: Deny, conds: []cond{cb}}}}, {admin: []step{{action: Accept, conds: []cond{ca}}, {action: Deny, any: true}}}},
		"Baseline below NetworkPolicies":     {{isolated: true, allow: []cond{ca}, base: []step{{action: Deny, any: true}}}, {isolated: true, allow: []cond{ca}}},
		"what Baseline accepts last":         {{base: []step{{action: Deny, conds: []cond{ca}}, {action: Accept, any: true}}}, {base: []step{{action: Deny, conds: []cond{ca}}}}},
		"a tier that denies, in two ways":    {{base: []step{{action: Deny, any: true}}}, {isolated: true}},
		"rules without anything to be about": {{admin: []step{{action: Deny}}}, {}},
	} {
		pair[0].normalize()
		pair[1].normalize()
		if pair[0].key != pair[1].key {
			t.Errorf("%s: %q and %q", name, pair[0].key, pair[1].key)
		}
	}
	for _, p := range []program{{admin: []step{{action: Accept, any: true}}}, {isolated: true, allow: []cond{{}}}, {base: []step{{action: Pass, any: true}}}} {
		if p.normalize(); p.key != acceptKey {
			t.Errorf("%q, want %q", p.key, acceptKey)
		}
	}
	passes := program{admin: []step{{action: Pass, conds: []cond{ca}}, {action: Deny, any: true}}, isolated: true, allow: []cond{cb}}
	if passes.normalize(); passes.allow == nil {
		t.Error("a Pass leads nowhere")
	}
}
