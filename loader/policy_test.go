// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

func mustPolicy(t testing.TB, mode, rules string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse(mode, json.RawMessage(rules))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// policyOf returns the id that the endpoint's entries and its device agree about.
func (e *env) policyOf(d *Datapath, ep Endpoint) uint16 {
	e.t.Helper()
	eps, err := d.tree.EndpointMaps()
	e.ok(err)
	raw, err := d.tree.Pinned(pintree.MapDevicePolicy)
	e.ok(err)
	dev, _, err := policymap.NewDevices(raw).Get(uint32(ep.HostIfindex))
	e.ok(err)
	for _, p := range ep.Addrs {
		got, _, err := eps.Addrs.Get(p.Addr())
		e.ok(err)
		if got.Policy != dev.Policy {
			e.t.Errorf("endpoint %s is under %d, its device under %d", p, got.Policy, dev.Policy)
		}
	}
	return dev.Policy
}

func (e *env) wantPolicies(d *Datapath, n int) {
	e.t.Helper()
	all, err := d.Policies(e.ctx)
	e.ok(err)
	if len(all) != n {
		e.t.Errorf("%d policies, want %d: %+v", len(all), n, all)
	}
}

func TestPrivilegedPolicies(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	const rules = `{"ingress":[{"action":"allow","cidrs":["10.0.0.0/8","fd00::/8"],"protocol":"tcp","ports":["80","443"]}],"ingressDefault":"deny"}`
	a, b := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	a.Policy, b.Policy = mustPolicy(t, "isolated", rules), mustPolicy(t, "isolated", rules)
	for _, ep := range []Endpoint{a, b} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	}
	id := e.policyOf(d, a)
	if id == 0 || e.policyOf(d, b) != id {
		t.Errorf("ids %d and %d, want one for the same rules", id, e.policyOf(d, b))
	}
	e.wantPolicies(d, 1)
	all, err := d.Policies(e.ctx)
	e.ok(err)
	if p := all[0]; len(p.Ingress) != 5 || p.Ingress[4].Allow || p.Ingress[4].Number != -1 || len(p.Egress) != 1 || len(p.Owners) != 2 ||
		p.Ingress[0].Network.String() != "10.0.0.0/8" || p.Ingress[1].Ports != "443" || p.Ingress[2].Network.String() != "fd00::/8" {
		t.Errorf("%+v", p)
	}

	other := a // other features of the pod leave the policy alone
	other.Policy = nil
	e.ok(d.Enable(e.ctx, other, FeaturePublish))
	if e.policyOf(d, a) != id {
		t.Error("portmap took the policy away")
	}
	b.Policy = mustPolicy(t, "isolated", `{"egressDefault":"deny"}`)
	if err := d.CheckEndpoint(e.ctx, b, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("check against other rules: %v", err)
	}
	e.ok(d.Enable(e.ctx, b, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, b, FeatureAdmit))
	e.wantPolicies(d, 2)
	b.Policy = nil
	e.ok(d.Enable(e.ctx, b, FeatureAdmit))
	if e.policyOf(d, b) != 0 {
		t.Error("a policy is left")
	}
	e.ok(d.Disable(e.ctx, a.Ref.Owner(), FeatureAdmit, HeldBy(a.Addrs))) // it still publishes
	if e.policyOf(d, a) != 0 {
		t.Error("a policy is left")
	}
	e.wantPolicies(d, 0)
}

// GC takes policies along with their pods; a pod that went without DEL leaves none.
func TestPrivilegedPoliciesGC(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	a, b := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	inside, _ := e.insider("pod3", "192.0.2.20/24")
	a.Policy = mustPolicy(t, "same-bridge", "")
	b.Policy = mustPolicy(t, "isolated", "")
	inside.Policy = mustPolicy(t, "", `{"egressDefault":"deny"}`)
	for _, ep := range []Endpoint{a, b, inside} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	}
	e.wantPolicies(d, 3)
	raw, err := d.tree.Pinned(pintree.MapDevicePolicy)
	e.ok(err)
	stray := podnsmap.Key(podnsmap.Last)
	dev, _, err := policymap.NewDevices(raw).Get(uint32(a.HostIfindex))
	e.ok(err)
	e.ok(policymap.NewDevices(raw).Put(stray, &dev))
	e.ok(d.GC(e.ctx, func(owner uint64) bool { return owner == a.Ref.Owner() }))
	e.wantPolicies(d, 1)
	if _, ok, err := policymap.NewDevices(raw).Get(stray); ok || err != nil {
		t.Errorf("a stray device: %t %v", ok, err)
	}
	e.ok(d.CheckEndpoint(e.ctx, a, FeatureAdmit))
}

// An Enable that fails leaves no policy.
func TestPrivilegedPoliciesRollback(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	a := e.pod("pod1", "10.1.0.2/16")
	a.Policy = mustPolicy(t, "isolated", "")
	a.HostIfindex = 4711 // no such device
	if err := d.Enable(e.ctx, a, FeatureAdmit); !errors.Is(err, ErrNoDevice) {
		t.Errorf("%v", err)
	}
	e.wantPolicies(d, 0)
}

// A tenant who chooses rules can take the ids that another's rules may have. That costs others a look at all policies, not their ADD.
func TestPrivilegedPoliciesAimedAtOne(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	aimed := mustPolicy(t, "isolated", `{"ingress":[{"action":"allow","protocol":"tcp","ports":["80"]}],"ingressDefault":"deny"}`)
	value, err := policymap.FromPolicy(aimed)
	e.ok(err)
	v, err := d.policyMaps()
	e.ok(err)
	m := v.policies
	for i := range 40 {
		want, there, err := m.Place(policymap.Policy{Rules: value})
		e.ok(err)
		if there {
			t.Fatal("no pod has the policy, and it is there")
		}
		// Stands for rules that were tried until this was their id.
		v, err := policymap.FromPolicy(mustPolicy(t, "open", fmt.Sprintf(`{"egress":[{"action":"deny","protocol":"udp","ports":["%d"]}]}`, 1+i)))
		e.ok(err)
		e.ok(m.Put(want, policymap.Policy{Rules: v}))
	}
	a, b := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	a.Policy, b.Policy = aimed, aimed
	for _, ep := range []Endpoint{a, b} {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	}
	if x, y := e.policyOf(d, a), e.policyOf(d, b); x == 0 || x != y {
		t.Errorf("one policy is under %d and %d", x, y)
	}
	have, err := m.Get(e.policyOf(d, a))
	e.ok(err)
	if !have.Same(policymap.Policy{Rules: value}) {
		t.Errorf("another policy is under the pod's id: %+v", have)
	}
}
