// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

const (
	webSet networkpolicy.SetID = 0x77
	dbSet  networkpolicy.SetID = 0x78
)

// onlyFrom is a set that admits what the classes with a point open toward the pod, and everything that the pod opens.
func onlyFrom(id networkpolicy.SetID, point networkpolicy.Point) networkpolicy.WriteSet {
	return networkpolicy.WriteSet{ID: id, Segments: []networkpolicy.Segment{
		{Direction: networkpolicy.Ingress, Last: 1<<16 - 1, Point: point},
		{Direction: networkpolicy.Egress, Last: 1<<16 - 1, Point: networkpolicy.AcceptPoint},
	}}
}

func (e *env) entries(d *Datapath, name string) int {
	e.t.Helper()
	m, err := d.tree.Pinned(name)
	e.ok(err)
	n, err := bpfsys.CountKeys(m)
	e.ok(err)
	return n
}

func (e *env) begin(d *Datapath, changes ...networkpolicy.Change) NetworkPolicyTables {
	e.t.Helper()
	tables, err := d.BeginNetworkPolicy(e.ctx)
	e.ok(err)
	e.ok(tables.Apply(e.ctx, changes))
	e.ok(tables.Finish(e.ctx))
	return tables
}

// setOf is the set that the endpoint's device is under.
func (e *env) setOf(d *Datapath, ep Endpoint) networkpolicy.SetID {
	e.t.Helper()
	id := e.policyOf(d, ep)
	if id == 0 {
		return networkpolicy.OpenSet
	}
	v, err := d.policyMaps()
	e.ok(err)
	p, err := v.policies.Get(id)
	e.ok(err)
	if p.Network == nil {
		return networkpolicy.OpenSet
	}
	return networkpolicy.SetID(p.Network.Set)
}

func (e *env) wantSet(d *Datapath, ep Endpoint, want networkpolicy.SetID) {
	e.t.Helper()
	if got := e.setOf(d, ep); got != want {
		e.t.Errorf("%s is under set %#x, want %#x", ep.Ref, got, want)
	}
}

// An ADD finds what the agent has written of the pod. One of which nothing is known is closed, unless no policy can select it.
func TestPrivilegedNetworkPolicyAtADD(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	a, b, c := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16"), e.pod("pod3", "10.1.0.4/16")
	a.NetworkPolicy = NetworkPolicyPod{"uid-a", "shop"}
	b.NetworkPolicy = NetworkPolicyPod{"uid-b", "shop"}
	c.NetworkPolicy = NetworkPolicyPod{"uid-c", "free"}
	tables := e.begin(d, onlyFrom(webSet, 2), networkpolicy.WritePod{UID: "uid-a", Set: webSet}, networkpolicy.WriteNamespace{Name: "free"})
	for _, ep := range []Endpoint{a, b, c} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	}
	e.wantSet(d, a, webSet)
	e.wantSet(d, b, networkpolicy.ClosedSet)
	e.wantSet(d, c, networkpolicy.OpenSet)
	status, err := d.NetworkPolicies(e.ctx)
	e.ok(err)
	closed := 0
	for _, s := range status {
		if s.Closed > 0 {
			closed++
		}
	}
	if len(status) != 3 || closed != 1 {
		t.Errorf("status %+v", status)
	}

	time.Sleep(10 * time.Millisecond)
	e.ok(tables.Apply(e.ctx, []networkpolicy.Change{networkpolicy.WritePod{UID: "uid-b", Set: networkpolicy.ClosedSet}}))
	status, err = d.NetworkPolicies(e.ctx)
	e.ok(err)
	for _, s := range status {
		if s.Closed > 0 && s.Closed < 10*time.Millisecond {
			t.Errorf("a pod that stays closed counts from anew: %v", s.Closed)
		}
	}

	other := a
	other.NetworkPolicy.UID = "uid-b"
	if err := d.CheckEndpoint(e.ctx, other, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("CHECK of another pod: %v", err)
	}
	other.NetworkPolicy = NetworkPolicyPod{}
	if err := d.CheckEndpoint(e.ctx, other, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("CHECK without NetworkPolicy: %v", err)
	}

	for _, ep := range []Endpoint{a, b, c} {
		e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	}
	status, err = d.NetworkPolicies(e.ctx)
	e.ok(err)
	if len(status) != 0 {
		t.Errorf("DEL leaves %+v", status)
	}
}

// A pod that runs goes from set to set, and keeps its rules.
func TestPrivilegedNetworkPolicyChanges(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	ruled, plain := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	ruled.Addrs = append(ruled.Addrs, netip.MustParsePrefix("fd00:1::2/64"))
	ruled.Policy = mustPolicy(t, "open", `{"ingress":[{"action":"deny","protocol":"tcp","ports":["22"]}]}`)
	ruled.NetworkPolicy, plain.NetworkPolicy = NetworkPolicyPod{"uid-a", "shop"}, NetworkPolicyPod{"uid-b", "shop"}
	tables := e.begin(d)
	for _, ep := range []Endpoint{ruled, plain} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.wantSet(d, ep, networkpolicy.ClosedSet)
	}
	seen := map[uint16]bool{}
	for _, set := range []networkpolicy.SetID{webSet, dbSet, networkpolicy.OpenSet, networkpolicy.ClosedSet, webSet} {
		e.ok(tables.Apply(e.ctx, []networkpolicy.Change{
			onlyFrom(webSet, 2), onlyFrom(dbSet, 3), networkpolicy.WritePod{UID: "uid-a", Set: set}, networkpolicy.WritePod{UID: "uid-b", Set: set},
		}))
		for _, ep := range []Endpoint{ruled, plain} {
			e.wantSet(d, ep, set)
			e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
		}
		seen[e.policyOf(d, ruled)] = true
	}
	if len(seen) != 4 || seen[0] {
		t.Errorf("ids %v of a pod with rules, want another one for each set", seen)
	}
	e.ok(d.Enable(e.ctx, ruled, FeatureAdmit)) // a repeated ADD
	e.wantSet(d, ruled, webSet)
}

// Where NetworkPolicy is turned off, pods that run keep their rules and nothing else.
func TestPrivilegedNetworkPolicyEnds(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	e.ok(d.EndNetworkPolicy(e.ctx))
	ruled, plain := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	ruled.Policy = mustPolicy(t, "open", `{"ingressDefault":"deny"}`)
	ruled.NetworkPolicy, plain.NetworkPolicy = NetworkPolicyPod{"uid-a", "shop"}, NetworkPolicyPod{"uid-b", "shop"}
	tables := e.begin(d, onlyFrom(webSet, 2), networkpolicy.WritePod{UID: "uid-a", Set: webSet})
	for _, ep := range []Endpoint{ruled, plain} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	}
	e.ok(d.EndNetworkPolicy(e.ctx))
	if e.policyOf(d, ruled) == 0 || e.policyOf(d, plain) != 0 {
		t.Errorf("policies %d and %d, want that of the rules and none", e.policyOf(d, ruled), e.policyOf(d, plain))
	}
	for _, name := range []string{"sl_np_sets", "sl_np_pods", "sl_np_devices", "sl_np_policies"} {
		if n := e.entries(d, name); n != 0 {
			t.Errorf("%s keeps %d entries", name, n)
		}
	}
	if err := tables.Apply(e.ctx, nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("an agent goes on writing: %v", err)
	}
	ruled.NetworkPolicy = NetworkPolicyPod{}
	e.ok(d.CheckEndpoint(e.ctx, ruled, FeatureAdmit))
}

// A restarted agent begins anew: pods keep what they have until theirs is written, and what the agent before has written goes.
func TestPrivilegedNetworkPolicyRestart(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	a := e.pod("pod1", "10.1.0.2/16")
	a.NetworkPolicy = NetworkPolicyPod{"uid-a", "shop"}
	peer := netip.MustParseAddr("10.1.0.9")
	write := networkpolicy.WritePeer{Addr: peer, Class: 7, Owner: 1}
	prefix := networkpolicy.WriteCIDR{Prefix: netip.MustParsePrefix("::ffff:10.0.0.0/104"), Class: 4}
	bits := networkpolicy.WriteBits{Class: 7, Bits: networkpolicy.Chunk{4}}
	first := e.begin(d, write, prefix, networkpolicy.WriteService{Prefix: prefix.Prefix}, bits, onlyFrom(webSet, 2), networkpolicy.WritePod{UID: "uid-a", Set: webSet},
		networkpolicy.WritePod{UID: "uid-gone", Set: webSet}, networkpolicy.WriteNamespace{Name: "gone"})
	e.ok(d.Enable(e.ctx, a, FeatureAdmit))
	before := e.policyOf(d, a)

	second, err := d.BeginNetworkPolicy(e.ctx)
	e.ok(err)
	if err := first.Apply(e.ctx, []networkpolicy.Change{write}); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first agent goes on writing: %v", err)
	}
	e.ok(second.Apply(e.ctx, []networkpolicy.Change{write, prefix, bits, onlyFrom(webSet, 2)}))
	if now := e.policyOf(d, a); now != before {
		t.Errorf("the pod is under %d before it is written, %d before", now, before)
	}
	e.ok(second.Apply(e.ctx, []networkpolicy.Change{networkpolicy.WritePod{UID: "uid-a", Set: webSet}}))
	e.ok(second.Finish(e.ctx))
	if now := e.policyOf(d, a); now == before {
		t.Error("the points of another generation are under the same id")
	}
	e.wantSet(d, a, webSet)
	for name, want := range map[string]int{
		"sl_np_peers": 1, "sl_np_cidrs": 1, "sl_np_services": 0, "sl_np_bits": 1, "sl_np_sets": 1, "sl_np_pods": 1, "sl_np_open_ns": 0, "sl_np_policies": 1,
	} {
		if got := e.entries(d, name); got != want {
			t.Errorf("%s has %d entries, want %d", name, got, want)
		}
	}
	e.ok(second.Apply(e.ctx, []networkpolicy.Change{
		networkpolicy.DeletePeer{Addr: peer, Owner: 2}, networkpolicy.DeleteCIDR{Prefix: prefix.Prefix}, networkpolicy.DeleteBits{Class: 7, Chunks: 1},
		networkpolicy.WritePod{UID: "uid-a"}, networkpolicy.DeleteSet{ID: webSet}, networkpolicy.DeletePod{UID: "uid-a"},
	}))
	if got := e.entries(d, "sl_np_peers"); got != 1 {
		t.Error("an address was deleted that another pod has")
	}
	e.ok(second.Apply(e.ctx, []networkpolicy.Change{networkpolicy.DeletePeer{Addr: peer, Owner: 1}}))
	for _, name := range []string{"sl_np_peers", "sl_np_cidrs", "sl_np_bits", "sl_np_sets", "sl_np_pods"} {
		if got := e.entries(d, name); got != 0 {
			t.Errorf("%s keeps %d entries", name, got)
		}
	}
}
