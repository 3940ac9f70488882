// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// count returns how many of the changes are of a type.
func count[T Change](changes []Change) (n int) {
	for _, c := range changes {
		if _, ok := c.(T); ok {
			n++
		}
	}
	return n
}

func closes(changes []Change) bool {
	for _, c := range changes {
		if w, ok := c.(WritePod); ok && w.Set == ClosedSet {
			return true
		}
	}
	return false
}

// A pod is closed between two sets only if other pods change in the same commit.
func TestClosedOnlyIfNeeded(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.commit()
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "other")))))
	if changes := l.commit(); closes(changes) || count[WritePod](changes) != 1 {
		t.Errorf("another policy: %+v", changes)
	}
	l.UpsertPod(pod("db", "shop/web", 1, "10.0.0.1"))
	if changes := l.commit(); closes(changes) || count[WritePod](changes) != 1 {
		t.Errorf("other labels: %+v", changes)
	}
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/other", 1, "10.0.0.2"))
	if changes := l.commit(); !closes(changes) || count[WritePod](changes) != 2 {
		t.Errorf("two pods: %+v", changes)
	}
}

// A class is divided for a new rule while a pod of it is new and a set changes: the new pod is not written before the set is closed.
func TestDividedClassWaits(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("x", "shop/x", 1, "10.0.0.2"))
	for i := range 3 {
		l.UpsertPod(pod(fmt.Sprint("web", i), "shop/web", 1, fmt.Sprint("10.0.1.", i)))
		l.UpsertPod(pod(fmt.Sprint("bank", i), fmt.Sprint("bank/web", i), 1, fmt.Sprint("10.0.2.", i)))
	}
	l.UpsertPod(pod("p", "shop/other", 1, "10.0.3.1"))
	l.UpsertPolicy(ingress("p", "db", rule(from(PodSelector{Pods: Selector{{Key: "app", Operator: NotIn, Values: []string{"other"}}}}))))
	l.admits("deny db from 10.0.3.1 tcp/80")
	l.UpsertPod(pod("p", "shop/web", 1, "10.0.3.1"))
	l.UpsertPolicy(ingress("p", "db"))
	l.UpsertPolicy(egress("q", "x", rule(from(app("shop", "web")))))
	for _, c := range l.Commit().Changes {
		l.tables.Apply(c)
		if l.tables.Lookup("db", Ingress, netip.MustParseAddr("10.0.3.1"), TCP, 80) == Admitted {
			t.Errorf("open after %+v", c)
		}
	}
}

// Where a rule divides a class, the smaller part of its pods is written.
func TestSmallerPartMoves(t *testing.T) {
	for _, selected := range []int{1, 9} {
		l := newLab(t)
		l.UpsertPod(pod("db", "bank/db", 1, "10.0.0.1"))
		for i := range 10 {
			p := pod(fmt.Sprint("p", i), fmt.Sprint("shop/app", i), 1, fmt.Sprint("10.0.1.", i))
			p.Labels["side"] = "many"
			if i == 0 {
				p.Labels["side"] = "one"
			}
			l.UpsertPod(p)
		}
		everybody := Policy{Namespace: "bank", Name: "p", Tier: NetworkPolicies, Subject: app("bank", ""), Isolates: [2]bool{true, true}}
		everybody.Rules[Ingress] = []Rule{rule(from(app("shop", "")))}
		l.UpsertPolicy(everybody)
		l.commit()
		side := "one"
		if selected == 9 {
			side = "many"
		}
		everybody.Rules[Egress] = []Rule{rule(from(PodSelector{Pods: Selector{{Key: "side", Operator: In, Values: []string{side}}}}))}
		l.UpsertPolicy(everybody)
		if changes := l.commit(); count[WritePeer](changes) != 1 {
			t.Errorf("%d of 10 pods are selected: %d addresses are written", selected, count[WritePeer](changes))
		}
		everybody.Rules[Egress] = nil
		l.UpsertPolicy(everybody)
		if changes := l.commit(); count[WritePeer](changes) != 1 {
			t.Errorf("%d of 10 pods are selected no more: %d addresses are written", selected, count[WritePeer](changes))
		}
	}
}

// Connections are asked again where a peer loses something, and not where a class is only divided or united.
func TestLoses(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.UpsertPod(pod("other", "shop/other", 1, "10.0.0.3"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.commit()
	loses := func(changes []Change) (n int) {
		for _, c := range changes {
			switch c := c.(type) {
			case WritePeer:
				if c.Loses {
					n++
				}
			case DeletePeer:
				if c.Loses {
					n++
				}
			}
		}
		return n
	}
	check := func(what string, want int) {
		t.Helper()
		if changes := l.commit(); loses(changes) != want {
			t.Errorf("%s: %d addresses lose, want %d: %+v", what, loses(changes), want, changes)
		}
	}
	l.UpsertPolicy(egress("q", "db", rule(from(app("shop", "other")))))
	check("a class is divided", 0)
	l.DeletePolicy("shop", "q")
	check("classes are united", 0)
	l.UpsertPod(pod("other", "shop/web", 1, "10.0.0.3"))
	check("a pod gains", 0)
	l.UpsertPod(pod("other", "shop/other", 1, "10.0.0.3"))
	check("a pod loses its label", 1)
	l.DeletePod("web")
	check("a pod goes", 1)
	l.UpsertPolicy(ingress("p", "db", rule(block("10.0.0.0/24"))))
	check("another policy", 0)
	l.UpsertPod(pod("new", "shop/new", 1, "10.0.0.9"))
	check("a pod comes at an address in a block", 0)
}

// A rule that selects all pods divides nothing.
func TestRuleForAllPodsWritesNoAddress(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	for i := range 10 {
		l.UpsertPod(pod(fmt.Sprint("p", i), fmt.Sprint("bank/app", i), 1, fmt.Sprint("10.0.1.", i)))
	}
	l.commit()
	l.UpsertPolicy(ingress("p", "db", rule(from(PodSelector{}), tcp(80, 80))))
	if changes := l.commit(); count[WritePeer](changes) != 0 {
		t.Errorf("%d addresses are written", count[WritePeer](changes))
	}
	l.admits("admit db from 10.0.1.1 tcp/80", "deny db from 192.0.2.1 tcp/80")
}

// Numbers that a batch removed are not given again before it has settled.
func TestNumbersWaitForSettled(t *testing.T) {
	e := New(Config{Node: "here"})
	e.UpsertNamespace(Namespace{Name: "shop"})
	e.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	seen := map[Point]bool{}
	ids := map[SetID]bool{}
	var last Batch
	for i := range 10 {
		e.UpsertPolicy(ingress("p", "db", rule(block(fmt.Sprintf("192.0.2.%d/32", i)))))
		last = e.Commit()
		for _, c := range last.Changes {
			w, ok := c.(WriteSet)
			if !ok || w.ID == ClosedSet {
				continue
			}
			if ids[w.ID] || seen[w.Segments[0].Point] {
				t.Errorf("set %d and point %d are used again", w.ID, w.Segments[0].Point)
			}
			ids[w.ID], seen[w.Segments[0].Point] = true, true
		}
	}
	e.Settled(last)
	e.UpsertPolicy(ingress("p", "db", rule(block("198.51.100.0/24"))))
	for _, c := range e.Commit().Changes {
		if w, ok := c.(WriteSet); ok && !seen[w.Segments[0].Point] {
			t.Errorf("point %d is new, although others are free", w.Segments[0].Point)
		}
	}
}

// Labels that no rule asks for, such as those of Jobs, make no classes.
func TestOtherLabelsMakeNoClasses(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	for i := range 1000 {
		p := pod(fmt.Sprint("job", i), pickWhere(i), 1, fmt.Sprintf("10.1.%d.%d", i/256, i%256))
		p.Labels["controller-uid"] = fmt.Sprint(i)
		l.UpsertPod(p)
	}
	l.commit()
	if got := l.Stats(); got.Kinds != 1001 || got.Classes != 3 { // other addresses, pods that are selected, other pods
		t.Errorf("%+v", got)
	}
}

func pickWhere(i int) string {
	if i%2 == 0 {
		return "shop/web"
	}
	return "bank/batch"
}
