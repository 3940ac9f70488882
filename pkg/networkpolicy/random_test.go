// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// dice makes random objects of a small world, in which everything meets everything.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 1))} }

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

func (d dice) labels() map[string]string {
	labels := map[string]string{}
	for _, k := range []string{"a", "b", "c"} {
		if d.chance(60) {
			labels[k] = pick(d, "1", "2", "3")
		}
	}
	return labels
}

func (d dice) selector() Selector {
	var s Selector
	for range pick(d, 0, 1, 1, 2) {
		r := Requirement{Key: pick(d, "a", "b", "c"), Operator: pick(d, In, In, In, NotIn, Exists, DoesNotExist)}
		if r.Operator == In || r.Operator == NotIn {
			for range 1 + d.IntN(2) {
				r.Values = append(r.Values, pick(d, "1", "2", "3"))
			}
		}
		s = append(s, r)
	}
	return s
}

var (
	worldNamespaces = [...]string{"n1", "n2", "n3"}
	worldAddrs      = addrs("10.0.0.1 10.0.0.2 10.0.1.1 10.0.1.2 10.1.0.1 fd00::1 fd00::2 fd00:1::1")
	otherAddrs      = addrs("10.0.0.9 10.0.1.9 10.1.0.9 192.0.2.1 198.51.100.1 fd00::9 2001:db8::1 ::1")
	worldPorts      = []uint16{79, 80, 81, 90, 443, 8080}
	worldBlocks     = []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.1/32", "10.0.0.77/24", "192.0.2.0/24",
		"::/0", "fd00::/16", "fd00::/64", "fd00::1/128", "2001:db8::/32", "::/64", "10.1.0.0/16"}
)

func addrs(list string) []netip.Addr {
	var out []netip.Addr
	for _, a := range strings.Fields(list) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func (d dice) namedPorts() []NamedPort {
	var out []NamedPort
	for range d.IntN(3) {
		out = append(out, NamedPort{Name: pick(d, "http", "dns"), Protocol: pick(d, TCP, TCP, UDP), Number: pick(d, worldPorts...)})
	}
	return out
}

func (d dice) pod(now int) Pod {
	i := d.IntN(8)
	p := Pod{
		UID: fmt.Sprint("uid-", i), Namespace: pick(d, worldNamespaces[:]...), Labels: d.labels(), Ports: d.namedPorts(),
		Node: pick(d, "here", "there"), Created: time.Unix(int64(now), 0), Terminal: d.chance(5), HostNetwork: d.chance(5),
	}
	for range d.IntN(3) {
		p.Addrs = append(p.Addrs, pick(d, worldAddrs...))
	}
	slices.SortFunc(p.Addrs, netip.Addr.Compare)
	p.Addrs = slices.Compact(p.Addrs)
	return p
}

func (d dice) podSelector(namespace string) PodSelector {
	s := PodSelector{Pods: d.selector()}
	if namespace != "" && d.chance(50) {
		s.Namespace = namespace
	} else {
		s.Namespaces = d.selector()
	}
	return s
}

func (d dice) block() *Block {
	b := &Block{CIDR: netip.MustParsePrefix(pick(d, worldBlocks...))}
	for range pick(d, 0, 0, 1, 2) {
		b.Except = append(b.Except, netip.MustParsePrefix(pick(d, worldBlocks...)))
	}
	return b
}

func (d dice) rule(namespace string) Rule {
	r := Rule{Action: pick(d, Accept, Deny, Pass)}
	for range pick(d, 0, 1, 1, 2) {
		switch {
		case d.chance(3):
			r.Peers = append(r.Peers, Peer{Unsupported: "of the test"})
		case d.chance(35):
			r.Peers = append(r.Peers, Peer{Block: d.block()})
		default:
			s := d.podSelector(namespace)
			r.Peers = append(r.Peers, Peer{Pods: &s})
		}
	}
	for range pick(d, 0, 0, 1, 2) {
		p := Port{Protocol: pick(d, TCP, TCP, UDP, SCTP)}
		switch {
		case d.chance(3):
			p.Unsupported = "of the test"
		case d.chance(30):
			p.Name = pick(d, "http", "dns")
			if d.chance(20) {
				p.Protocol = AnyProtocol
			}
		case d.chance(20):
			p.First, p.Last = 0, 65535
		default:
			p.First = pick(d, worldPorts...)
			p.Last = p.First + uint16(pick(d, 0, 0, 1, 11))
		}
		r.Ports = append(r.Ports, p)
	}
	return r
}

func (d dice) policy() Policy {
	p := Policy{Name: pick(d, "p1", "p2", "p3"), Tier: pick(d, NetworkPolicies, NetworkPolicies, NetworkPolicies, Admin, Baseline), Priority: d.IntN(3)}
	if p.Tier == NetworkPolicies {
		p.Namespace = pick(d, worldNamespaces[:]...)
		p.Subject = PodSelector{Namespace: p.Namespace, Pods: d.selector()}
		p.Isolates = pick(d, [2]bool{true, false}, [2]bool{false, true}, [2]bool{true, true})
	} else {
		p.Subject = d.podSelector("")
	}
	for dir := range p.Rules {
		for range d.IntN(3) {
			p.Rules[dir] = append(p.Rules[dir], d.rule(p.Namespace))
		}
	}
	return p
}

// change makes one change to a world and tells the engine.
func (d dice) change(w *world, e *Engine, now int) {
	switch d.IntN(13) {
	case 0, 1, 2, 3:
		p := d.pod(now)
		if old, ok := w.pods[p.UID]; ok && d.chance(60) { // most changes are small
			p.Namespace, p.Node, p.Created = old.Namespace, old.Node, old.Created
			if d.chance(50) {
				p.Addrs = old.Addrs
			}
			if d.chance(50) {
				p.Ports = old.Ports
			}
			if d.chance(50) {
				p.Labels = old.Labels
			}
		}
		w.pods[p.UID] = p
		e.UpsertPod(p)
	case 4:
		uid := fmt.Sprint("uid-", d.IntN(8))
		delete(w.pods, uid)
		e.DeletePod(uid)
	case 5, 6:
		n := Namespace{Name: pick(d, worldNamespaces[:]...), Labels: d.labels()}
		w.namespaces[n.Name] = n
		e.UpsertNamespace(n)
	case 7:
		if d.chance(30) {
			name := pick(d, worldNamespaces[:]...)
			delete(w.namespaces, name)
			e.DeleteNamespace(name)
		}
	case 8, 9:
		p := d.policy()
		w.policies[policyName{p.Namespace, p.Name}] = p
		e.UpsertPolicy(p)
	case 10:
		if names := w.policyNames(); len(names) > 0 {
			n := pick(d, names...)
			delete(w.policies, n)
			e.DeletePolicy(n.namespace, n.name)
		}
	case 11:
		w.nodes = nil
		for range d.IntN(3) {
			w.nodes = append(w.nodes, pick(d, slices.Concat(worldAddrs, otherAddrs)...))
		}
		e.SetNodeAddrs(w.nodes)
	case 12: // a gap: some objects went, and a new list says which are left
		if d.chance(30) {
			d.gap(w, e)
		}
	}
}

func (w *world) policyNames() []policyName {
	return slices.SortedFunc(maps.Keys(w.policies), func(a, b policyName) int { return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name) })
}

// gap takes objects away without a word, and then has the engine compare.
func (d dice) gap(w *world, e *Engine) {
	lost := func() bool { return d.chance(30) }
	listed := map[uint64]bool{}
	for _, name := range worldNamespaces {
		if lost() {
			delete(w.namespaces, name)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		if lost() {
			delete(w.pods, uid)
		}
	}
	for _, n := range w.policyNames() {
		if n.namespace != "" && lost() {
			delete(w.policies, n)
		}
	}
	for uid := range w.pods {
		listed[PodKey(uid)] = true
	}
	e.RetainPods(func(key uint64) bool { return listed[key] })
	e.RetainNamespaces(func(name string) bool { _, ok := w.namespaces[name]; return ok })
	e.RetainPolicies(func(namespace, name string) bool { _, ok := w.policies[policyName{namespace, name}]; return ok })
}

// query is one question to the tables.
type query struct {
	uid   string
	dir   Direction
	peer  netip.Addr
	proto Protocol
	port  uint16
}

func (d dice) query() query {
	q := query{uid: fmt.Sprint("uid-", d.IntN(8)), dir: pick(d, Ingress, Egress), peer: pick(d, slices.Concat(worldAddrs, otherAddrs)...)}
	if q.proto = pick(d, TCP, TCP, UDP, SCTP, Protocol(1)); q.proto != 1 {
		q.port = pick(d, slices.Concat(worldPorts, []uint16{1, 82, 65535})...)
	}
	return q
}

func (t query) ask(f func(string, Direction, netip.Addr, Protocol, uint16) Verdict) Verdict {
	return f(t.uid, t.dir, t.peer, t.proto, t.port)
}

// run makes a random world from a seed and changes it step by step. After each step the tables answer as the reference, as Explain, and
// as a fresh engine. Between two steps, an answer is that of before or of afterwards, unless the pod is closed on purpose,
// or the peer's address was its own.
func run(tb testing.TB, seed uint64, steps int) {
	tb.Helper()
	d := newDice(seed)
	w := newWorld("here")
	if d.chance(50) {
		w.podNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}
	}
	e, tables := w.engine(), NewTables()
	var unsettled []Batch
	for step := range steps {
		queries := make([]query, 200)
		before, after, own := make([]Verdict, len(queries)), make([]Verdict, len(queries)), make([]bool, len(queries))
		for i := range queries {
			q := d.query()
			queries[i], before[i] = q, q.ask(tables.Lookup)
			own[i] = e.Explain(q.uid, q.dir, q.peer, q.proto, q.port).Reason == OwnAddress
		}
		var wasOpen [len(worldNamespaces)]bool
		for i, ns := range worldNamespaces {
			wasOpen[i] = tables.Open(ns)
		}
		for i := range pick(d, 1, 1, 1, 2, 5) {
			d.change(w, e, 10*step+i) // no two pods are made in the same second: the reference has no rule for that
		}
		for i, q := range queries {
			after[i] = q.ask(w.verdict)
		}
		b := e.Commit()
		asked := rejudged(b.Changes)
		for n, c := range b.Changes {
			tables.Apply(c)
			for i, ns := range worldNamespaces { // closed before anything else happens, opened after all of it
				if aboutNamespace(c) {
					continue
				}
				if got := tables.Open(ns); got != (wasOpen[i] && w.open(ns)) {
					tb.Fatalf("seed %d, step %d: namespace %s: open %t after change %d of %d, %+v; it was %t and becomes %t", seed, step, ns, got, n, len(b.Changes), c, wasOpen[i], w.open(ns))
				}
			}
			for i, q := range queries {
				if got := q.ask(tables.Lookup); got != before[i] && got != after[i] && got != Pending && (got != Denied || !own[i]) {
					tb.Fatalf("seed %d, step %d: %+v is %v after change %d of %d, %+v; it was %v and becomes %v", seed, step, q, got, n, len(b.Changes), c, before[i], after[i])
				}
			}
		}
		fresh, again := NewTables(), w.engine()
		for _, c := range again.Commit().Changes {
			fresh.Apply(c)
		}
		snapshot := NewTables()
		for _, c := range e.Snapshot().Changes {
			snapshot.Apply(c)
		}
		if s, f := tables.Size(), snapshot.Size(); s != f {
			tb.Fatalf("seed %d, step %d: the tables have %+v, those of a snapshot %+v", seed, step, s, f)
		}
		for i, q := range queries {
			if before[i] == Admitted && after[i] == Denied && !asked(q) && !own[i] {
				tb.Fatalf("seed %d, step %d: %+v was admitted and is denied, and nothing says that connections have to be asked again", seed, step, q)
			}
			got, explained := q.ask(tables.Lookup), e.Explain(q.uid, q.dir, q.peer, q.proto, q.port)
			if got != after[i] || explained.Verdict != after[i] || q.ask(fresh.Lookup) != after[i] || q.ask(snapshot.Lookup) != after[i] {
				tb.Fatalf("seed %d, step %d: %+v is %v, in a fresh engine %v, in a snapshot %v, explained by %+v; the reference says %v",
					seed, step, q, got, q.ask(fresh.Lookup), q.ask(snapshot.Lookup), explained, after[i])
			}
		}
		for _, ns := range worldNamespaces {
			if want := w.open(ns); tables.Open(ns) != want || fresh.Open(ns) != want || snapshot.Open(ns) != want {
				tb.Fatalf("seed %d, step %d: namespace %s: open %t, in a fresh engine %t; the reference says %t", seed, step, ns, tables.Open(ns), fresh.Open(ns), want)
			}
		}
		if s, f := tables.Size(), fresh.Size(); s.Peers != f.Peers || s.CIDRs != f.CIDRs || s.Sets != f.Sets || s.Pods != f.Pods || s.Namespaces != f.Namespaces {
			tb.Fatalf("seed %d, step %d: the tables have %+v, those of a fresh engine %+v", seed, step, s, f)
		}
		if s, f := e.Stats(), again.Stats(); s != f {
			tb.Fatalf("seed %d, step %d: the engine has %+v, a fresh one %+v", seed, step, s, f)
		}
		if d.chance(10) { // the caller begins again with empty tables
			tables = snapshot
		}
		unsettled = append(unsettled, b)
		for len(unsettled) > 0 && d.chance(60) {
			e.Settled(unsettled[0])
			unsettled = unsettled[1:]
		}
	}
}

var (
	worlds    = flag.Uint64("worlds", 150, "random `worlds` of TestRandomWorlds, with 40 changes each")
	firstSeed = flag.Uint64("first-seed", 0, "the `seed` of the first world")
)

func aboutNamespace(c Change) bool {
	switch c.(type) {
	case WriteNamespace, DeleteNamespace:
		return true
	}
	return false
}

// rejudged returns whether a batch has a connection asked again: by another set of the pod, or because the peer loses.
func rejudged(changes []Change) func(query) bool {
	pods, peers := map[string]bool{}, map[netip.Addr]bool{}
	for _, c := range changes {
		switch c := c.(type) {
		case WritePod:
			pods[c.UID] = true
		case WritePeer:
			peers[c.Addr.Unmap()] = peers[c.Addr.Unmap()] || c.Loses
		case DeletePeer:
			peers[c.Addr.Unmap()] = peers[c.Addr.Unmap()] || c.Loses
		}
	}
	return func(q query) bool { return pods[q.uid] || peers[q.peer] }
}

func TestRandomWorlds(t *testing.T) {
	t.Parallel()
	n := *worlds
	if testing.Short() {
		n = min(n, 30)
	}
	for seed := range n {
		run(t, *firstSeed+seed, 40)
	}
}

func FuzzWorlds(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { run(t, seed, 30) })
}
