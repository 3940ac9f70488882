// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
)

// wantAddrs wants the endpoints of these addresses and no others.
func (e *env) wantAddrs(when string, d *Datapath, want ...string) {
	e.t.Helper()
	all, err := d.Endpoints(e.ctx)
	e.ok(err)
	var got []string
	for _, ep := range all {
		for _, a := range ep.Addrs {
			got = append(got, a.Addr().String())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		e.t.Errorf("%s: endpoints of %v, want %v", when, got, want)
	}
}

// DEL finds what an owner has by the addresses of the record. It takes nothing of another owner, and without addresses it reads the map.
func TestPrivilegedDisableByAddresses(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	one, two := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	one.Addrs = append(one.Addrs, netip.MustParsePrefix("fd00::2/64"))
	for _, ep := range []Endpoint{one, two} {
		e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	}
	both := HeldBy(slices.Concat(one.Addrs, two.Addrs, one.Addrs))
	e.ok(d.Disable(e.ctx, one.Ref.Owner(), FeatureMasquerade, Held{Addrs: []netip.Addr{}}))
	e.wantAddrs("no address", d, "10.1.0.2", "10.1.0.3", "fd00::2")
	e.ok(d.Disable(e.ctx, one.Ref.Owner(), FeatureMasquerade, both))
	e.wantAddrs("with addresses of another", d, "10.1.0.3")
	e.wantTracked("with addresses of another", d, two.HostIfindex)
	e.ok(d.Disable(e.ctx, two.Ref.Owner(), FeatureMasquerade, Held{}))
	e.wantAddrs("without a record", d)
	e.wantTracked("without a record", d)
}

// A device that has a new owner keeps its programs when a record of the old one comes to its DEL late.
func TestPrivilegedDisableLeavesTheNewOwnersDevice(t *testing.T) {
	for name, held := range map[string]func(Endpoint) Held{
		"by addresses": func(ep Endpoint) Held { return HeldBy(ep.Addrs) },
		"by a walk":    func(Endpoint) Held { return Held{} },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			old := e.pod("pod1", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, old, FeatureMasquerade))
			next := old
			next.Ref.ContainerID, next.Addrs = "next", []netip.Prefix{netip.MustParsePrefix("10.1.0.9/16")}
			e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
			e.ok(d.Disable(e.ctx, old.Ref.Owner(), FeatureMasquerade, held(old)))
			e.wantAddrs("after DEL of the old owner", d, "10.1.0.9")
			e.ok(d.CheckEndpoint(e.ctx, next, FeatureMasquerade))
		})
	}
}

// marksIn returns the names in a directory of marks, without the one that says that all have links.
func marksIn(t testing.TB, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(mustNames(t, dir), func(name string) bool { return name == "linked" })
}

// A limit and a podns device are found by the link of their owner, and in a tree of a build that made no links by a walk.
func TestPrivilegedOwnerLinks(t *testing.T) {
	for _, linked := range []bool{true, false} {
		t.Run(fmt.Sprintf("linked=%t", linked), func(t *testing.T) {
			e := newEnv(t)
			setAttach(&e.o, "clsact")
			e.uplink()
			d := e.open()
			dirs := []string{d.tree.Paths.EDT(), d.tree.Paths.Podns()}
			ep := e.pod("pod1", "10.1.0.2/16")
			inside, _ := e.insider("pod3", "192.0.2.20/24")
			e.limited(d, ep)
			e.ok(d.Enable(e.ctx, inside, FeatureAdmit))
			if !linked {
				e.unlink(dirs)
			}
			e.ok(d.CheckEndpoint(e.ctx, inside, FeatureAdmit))
			e.ok(d.RemoveRateLimit(e.ctx, ep.Ref.Owner(), nil))
			e.ok(d.Disable(e.ctx, inside.Ref.Owner(), FeatureAdmit, HeldBy(inside.Addrs)))
			if all, err := d.RateLimits(e.ctx); err != nil || len(all) != 0 {
				t.Errorf("limits left: %+v %v", all, err)
			}
			e.noPodnsDevice(d)
			for _, dir := range dirs {
				if left := marksIn(t, dir); len(left) != 0 {
					t.Errorf("left in %s: %v", dir, left)
				}
			}
		})
	}
}

// unlink makes the tree one of a build that made no links.
func (e *env) unlink(dirs []string) {
	e.t.Helper()
	for _, dir := range dirs {
		links, err := filepath.Glob(filepath.Join(dir, "of*"))
		e.ok(err)
		if len(links) == 0 {
			e.t.Errorf("no links in %s", dir)
		}
		for _, path := range append(links, filepath.Join(dir, "linked")) {
			e.ok(os.Remove(path))
		}
	}
}

// A load gives links to what a former build has made. GC removes those that lead nowhere.
func TestPrivilegedLoadLinksOwners(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	e.uplink()
	d := e.open()
	dirs := []string{d.tree.Paths.EDT(), d.tree.Paths.Podns()}
	ep := e.pod("pod1", "10.1.0.2/16")
	inside, _ := e.insider("pod3", "192.0.2.20/24")
	e.limited(d, ep)
	e.ok(d.Enable(e.ctx, inside, FeatureAdmit))
	var want [][]string
	for _, dir := range dirs {
		want = append(want, mustNames(t, dir))
	}
	e.unlink(dirs)
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof // another build
	d = e.open()
	for i, dir := range dirs {
		got := mustNames(t, dir)
		slices.Sort(got)
		slices.Sort(want[i])
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s: %v after the load, want %v", dir, got, want[i])
		}
		e.ok(pintree.LinkOwner(dir, 4711, 0, podnsmap.Last))
	}
	e.ok(d.GC(e.ctx, func(uint64) bool { return true }))
	for i, dir := range dirs {
		if got := mustNames(t, dir); len(got) != len(want[i]) {
			t.Errorf("%s: %v after GC, want %v", dir, got, want[i])
		}
	}
	// A link that a killed ADD has left leads to the entry of another owner: it is not followed.
	all, err := d.RateLimits(e.ctx)
	e.ok(err)
	number, ok := pintree.Linked(dirs[0], ep.Ref.Owner(), edt.FlagEgress)
	if len(all) != 2 || !ok {
		t.Fatalf("limits %+v, link %t", all, ok)
	}
	e.ok(pintree.LinkOwner(dirs[0], 4711, edt.FlagEgress, number))
	e.ok(d.RemoveRateLimit(e.ctx, 4711, nil))
	if all, err := d.RateLimits(e.ctx); err != nil || len(all) != 2 {
		t.Errorf("limits of another owner went: %+v %v", all, err)
	}
}

// A map of policies that has no room forgets those that no device is under.
func TestPrivilegedPoliciesMakeRoom(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Endpoints = 128 // two policies
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	for i := range 6 {
		ep.Policy = mustPolicy(t, "isolated", fmt.Sprintf(`{"ingress":[{"action":"allow","protocol":"tcp","ports":["%d"]}],"ingressDefault":"deny"}`, 80+i))
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
		e.wantPolicies(d, 1)
	}
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	e.wantPolicies(d, 0)
}

// A map of allowed sources that has no room forgets the lists that no port names.
func TestPrivilegedAllowlistsMakeRoom(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	m, err := d.tree.Pinned(pintree.MapHostPortAllowlist)
	e.ok(err)
	lists := hostport.NewAllowlists(m)
	kept := port(8080, "10.1.0.2", 80)
	kept.AllowedSources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{kept}))
	var unused []netip.Prefix
	for i := 1; i < int(m.MaxEntries()); i++ {
		unused = append(unused, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	}
	_, err = lists.Put(unused)
	e.ok(err)
	next := port(8081, "10.1.0.3", 80)
	next.AllowedSources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")}
	e.ok(d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{next}))
	if n, err := lists.Len(); err != nil || n != 3 {
		t.Errorf("%d sources are listed, want 3: %v", n, err)
	}
	e.ok(d.CheckHostPorts(e.ctx, 1, []hostport.Mapping{kept}))
	e.ok(d.CheckHostPorts(e.ctx, 2, []hostport.Mapping{next}))
}
