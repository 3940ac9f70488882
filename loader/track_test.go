// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// tracked returns the devices that the kernel keeps in sl_pod_devices.
func (e *env) tracked(d *Datapath) []uint32 {
	e.t.Helper()
	v, err := d.tree.EndpointMaps()
	e.ok(err)
	keys, err := v.Devices.Keys()
	e.ok(err)
	slices.Sort(keys)
	return keys
}

// wantTracked wants these devices in the map.
func (e *env) wantTracked(when string, d *Datapath, want ...int) {
	e.t.Helper()
	var w []uint32
	for _, i := range want {
		w = append(w, uint32(i))
	}
	slices.Sort(w)
	if got := e.tracked(d); !slices.Equal(got, w) {
		e.t.Errorf("%s: tracked devices %v, want %v", when, got, w)
	}
}

// trackedOf returns the word of the endpoint of ep.
func (e *env) trackedOf(d *Datapath, ep Endpoint) uint8 {
	e.t.Helper()
	v, err := d.tree.EndpointMaps()
	e.ok(err)
	got, ok, err := v.Addrs.Get(ep.Addrs[0].Addr())
	e.ok(err)
	if !ok {
		e.t.Fatalf("no endpoint of %s", ep.Ref)
	}
	return got.Tracked
}

// A device is tracked as long as it has an endpoint, and no longer than it exists.
func TestPrivilegedTrackedDevices(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	one, two, gone, moved := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16"), e.pod("pod3", "10.1.0.4/16"), e.pod("pod4", "10.1.0.5/16")
	two.Addrs = append(two.Addrs, netip.MustParsePrefix("fd00::3/64"))
	for _, ep := range []Endpoint{one, two, gone, moved} {
		e.ok(d.Enable(e.ctx, ep, FeatureMasquerade|FeaturePublish))
	}
	e.wantTracked("enabled", d, one.HostIfindex, two.HostIfindex, gone.HostIfindex, moved.HostIfindex)
	e.ip("link", "del", "pod3")
	e.ip("netns", "add", "track-other")
	t.Cleanup(func() { e.ip("netns", "del", "track-other") })
	e.ip("link", "set", "pod4", "netns", "track-other")
	e.wantTracked("without two devices", d, one.HostIfindex, two.HostIfindex)
	if err := d.CheckEndpoint(e.ctx, gone, FeatureMasquerade); !errors.Is(err, ErrDiffers) {
		t.Errorf("check of a pod whose device is gone: %v", err)
	}
	e.ok(d.Disable(e.ctx, one.Ref.Owner(), FeatureMasquerade, HeldBy(one.Addrs)))
	e.wantTracked("with a feature left", d, one.HostIfindex, two.HostIfindex)
	e.ok(d.Disable(e.ctx, one.Ref.Owner(), FeaturePublish, HeldBy(one.Addrs)))
	e.wantTracked("without features", d, two.HostIfindex)
	e.ok(d.GC(e.ctx, func(uint64) bool { return false }))
	e.wantTracked("after GC", d)
}

// An Enable that fails leaves no device tracked.
func TestPrivilegedTrackedUndone(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Endpoints = 2
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	ep.Addrs = append(ep.Addrs, netip.MustParsePrefix("10.1.0.3/16"), netip.MustParsePrefix("10.1.0.4/16"))
	if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	e.wantTracked("after an error", d)
}

// dropTracking takes away what a build without sl_pod_devices did not have: the map, and the endpoints' word of it.
func (e *env) dropTracking(d *Datapath) {
	e.t.Helper()
	v, err := d.tree.EndpointMaps()
	e.ok(err)
	all := make(map[netip.Addr]endpoint.Value)
	e.ok(v.Addrs.Each(func(a netip.Addr, ep *endpoint.Value) bool {
		all[a] = *ep
		return true
	}))
	for a, ep := range all {
		ep.Tracked = 0
		e.ok(v.Addrs.Put(a, &ep))
	}
	e.ok(os.Remove(d.tree.Paths.MapPin(pintree.MapPodDevices)))
}

// beforeTracking makes d what a build without sl_pod_devices has left.
func (e *env) beforeTracking(d *Datapath) {
	e.t.Helper()
	e.dropTracking(d)
	id, _ := d.tree.Paths.Committed()
	e.ok(os.Rename(d.tree.Paths.BuildDir(id), d.tree.Paths.BuildDir("0123456789abcdef")))
	e.ok(d.Close())
}

// An upgrade from a build without sl_pod_devices: a DEL before the load works without it. The load enters the devices of all pods, and
// knows of the one that is gone.
func TestPrivilegedTrackedAfterUpgrade(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	one, two, gone := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16"), e.pod("pod3", "10.1.0.4/16")
	for _, ep := range []Endpoint{one, two, gone} {
		e.ok(d.Enable(e.ctx, ep, FeaturePublish))
	}
	e.ip("link", "del", "pod3")
	e.beforeTracking(d)

	existing, err := OpenExisting(e.ctx, e.o)
	e.ok(err)
	e.ok(existing.CheckEndpoint(e.ctx, two, FeaturePublish))
	e.ok(existing.Disable(e.ctx, one.Ref.Owner(), FeaturePublish, HeldBy(one.Addrs)))
	if all, err := existing.Endpoints(e.ctx); err != nil || len(all) != 2 {
		t.Errorf("after a DEL before the load: %+v %v", all, err)
	}
	e.ok(existing.Close())

	now := e.open()
	e.wantTracked("after the load", now, two.HostIfindex)
	for _, ep := range []Endpoint{two, gone} {
		if e.trackedOf(now, ep) != 1 {
			t.Errorf("%s is not tracked", ep.Ref)
		}
	}
	e.ok(now.CheckEndpoint(e.ctx, two, FeaturePublish))
}

// A map without room for all devices of an upgrade: no pod counts as gone for that.
func TestPrivilegedTrackedFull(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	one, two := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	for _, ep := range []Endpoint{one, two} {
		e.ok(d.Enable(e.ctx, ep, FeaturePublish))
	}
	e.beforeTracking(d)
	e.o.Config.MapSizes = nodeconf.MapSizes{Endpoints: 1}
	now := e.open()
	if n := len(e.tracked(now)); n != 1 {
		t.Fatalf("%d devices in a map of one", n)
	}
	for _, ep := range []Endpoint{one, two} {
		in := slices.Contains(e.tracked(now), uint32(ep.HostIfindex))
		if (e.trackedOf(now, ep) == 1) != in {
			t.Errorf("%s: in the map %t, tracked %d", ep.Ref, in, e.trackedOf(now, ep))
		}
		e.ok(now.CheckEndpoint(e.ctx, ep, FeaturePublish))
	}
}
