// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// An upgrade that was killed after its commit, while it removed the older set, or before it began to.
func TestPrivilegedKillWhileOldSetGoes(t *testing.T) {
	for _, left := range []string{"all", "some"} {
		t.Run(left, func(t *testing.T) {
			e := newEnv(t)
			e.uplink()
			d := e.open()
			e.ok(d.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeaturePublish))
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			// The names of sets have no order: this one is found first.
			old := d.tree.Paths.BuildDir("0000000000000000")
			e.ok(os.Mkdir(old, 0o700))
			if left == "all" {
				for _, name := range programs.AlwaysLoaded() {
					if name == loadapi.SockLB {
						continue
					}
					other, err := nextProgram()
					e.ok(err)
					e.ok(other.Pin(filepath.Join(old, name)))
					e.ok(other.Close())
				}
			}
			d2 := e.open()
			e.ok(d2.Enable(e.ctx, e.pod("pod2", "10.1.0.3/16"), FeaturePublish))
			if diff := cmp.Diff([]string{pintree.BuildPrefix + k.Build()}, mustNames(t, d2.tree.Paths.Progs())); diff != "" {
				t.Errorf("programs: %s", diff)
			}
			s, err := d2.Status(e.ctx)
			e.ok(err)
			want, err := programs.ID(d2.tree.Paths.BuildDir(k.Build()), hook.FromPod().Program)
			e.ok(err)
			for _, dev := range s.Devices {
				for _, p := range dev.Programs {
					if !p.OK || p.Name == hook.FromPod().Program && p.ID != want {
						t.Errorf("%s: %+v is not of the set in force", dev.Name, p)
					}
				}
			}
		})
	}
}

// A change of the configuration whose load was killed before its commit, and that is taken back then.
func TestPrivilegedLoadKilledAndTakenBack(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	e.ok(d.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeaturePublish))
	changed := *e.o.Config
	changed.AntiSpoof = !changed.AntiSpoof
	o := e.o
	o.Config = &changed
	other, err := newDatapath(o)
	e.ok(err)
	k, err := programs.ConstantsOf(other.tree)
	e.ok(err)
	fresh := other.tree.Paths.FreshDir(k.Build())
	_, err = programs.LoadFresh(e.ctx, other.tree, k, nil, fresh)
	e.ok(err)
	e.ok(other.replaceAttached(e.ctx, fresh))
	e.ok(other.Close())

	d2 := e.open()
	e.wantInForce(d2, 2)
}

// What the root of a pod puts in the way of our programs there is no reason to leave the whole node without an upgrade.
func TestPrivilegedUpgradeStrangerInPod(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	next, _ := e.insider("pod2", "192.0.2.21/24")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Enable(e.ctx, next, FeatureAdmit))
	in("tc", "filter", "del", "dev", "net1", "egress")
	in("tc", "filter", "add", "dev", "net1", "egress", "pref", "21324", "protocol", "all", "u32", "match", "u32", "0", "0")
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d2 := e.open()
	e.ok(d2.CheckEndpoint(e.ctx, next, FeatureAdmit))
	if err := d2.CheckEndpoint(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("a pod without our filter: %v", err)
	}
}

// Counters that were made before a map was full go with the rest: only GC would find them.
func TestPrivilegedEnableMapFullCounters(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Endpoints = 1
	d := e.open()
	first, second := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	second.Addrs = append(second.Addrs, netip.MustParsePrefix("10.1.0.4/16"), netip.MustParsePrefix("10.1.0.5/16"))
	e.ok(d.Enable(e.ctx, first, FeaturePublish))
	if err := d.Enable(e.ctx, second, FeaturePublish); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	e.ok(d.Disable(e.ctx, second.Ref.Owner(), FeaturePublish, HeldBy(second.Addrs))) // as the runtime's DEL does
	v, err := d.tree.EndpointMaps()
	e.ok(err)
	keys, err := v.Stats.Keys()
	e.ok(err)
	if diff := cmp.Diff([]uint32{uint32(first.HostIfindex)}, keys); diff != "" {
		t.Errorf("counters: %s", diff)
	}
	// A feature more that fails takes nothing from the device.
	first.Addrs = append(first.Addrs, second.Addrs...)
	if err := d.Enable(e.ctx, first, FeatureMasquerade); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if has, err := v.Stats.Has(uint32(first.HostIfindex)); !has || err != nil {
		t.Errorf("counters of a device with another feature: %t %v", has, err)
	}
}

// A device that goes between the qdisc and the filter is one that has gone, as for tcx links.
func TestPrivilegedFilterDeviceGone(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	c, err := a.Conn()
	e.ok(err)
	for _, fresh := range []bool{true, false} {
		if _, err := a.PutFilter(c, 9999, hook.FromPod(), fresh); !errors.Is(err, ErrNoDevice) {
			t.Errorf("fresh %t: got %v, want ErrNoDevice", fresh, err)
		}
	}
}

// A release that is installed with pods running has maps that the one before had not, until its first ADD loads it. DEL and GC
// of those pods come before: a map that is not there is an empty one, and what they hold in the others goes.
func TestPrivilegedDeleteBeforeLoad(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	for _, missing := range []string{pintree.MapPolicies, pintree.MapDevicePolicy} {
		ep, _ := e.insider(missing, "192.0.2.20/24")
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		putBack := e.takePin(d, missing)
		next, err := OpenExisting(e.ctx, e.o)
		e.ok(err)
		if err := next.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)); err != nil {
			t.Errorf("without %s, inside the pod: %v", missing, err)
		}
		e.noPodnsDevice(next)
		e.ok(next.Close())
		putBack()
	}
	for i, missing := range pintree.SharedMaps() {
		ep := e.pod("pod"+strconv.Itoa(i), "10.1.0.2/16")
		ep.Policy = &policy.Policy{DenyIngress: true}
		owner := ep.Ref.Owner()
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit|FeaturePublish))
		port := hostport.Mapping{
			Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: 8080}, PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80,
			AllowedSources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		}
		e.ok(d.SetHostPorts(e.ctx, owner, nil, []hostport.Mapping{port}))
		putBack := e.takePin(d, missing)

		next, err := OpenExisting(e.ctx, e.o)
		e.ok(err)
		for name, verb := range map[string]func() error{
			"RemoveHostPorts": func() error { return next.RemoveHostPorts(e.ctx, owner, nil) },
			"Disable":         func() error { return next.Disable(e.ctx, owner, FeatureAdmit|FeaturePublish, Held{}) },
			"RemoveRateLimit": func() error { return next.RemoveRateLimit(e.ctx, owner, nil) },
			"GC":              func() error { return next.GC(e.ctx, func(uint64) bool { return true }) },
		} {
			if err := verb(); err != nil {
				t.Errorf("without %s: %s: %v", missing, name, err)
			}
		}
		if missing != pintree.MapEndpoints {
			if eps, err := next.Endpoints(e.ctx); err == nil && len(eps) != 0 {
				t.Errorf("without %s: endpoints left: %+v", missing, eps)
			}
		}
		if got := hooksOf(e, next, ep.HostIfindex); missing != pintree.MapEndpoints && missing != pintree.MapEpStats && missing != pintree.MapCacheEpoch && len(got) != 0 {
			t.Errorf("without %s: programs left: %v", missing, got)
		}
		e.ok(next.Close())
		// What the map had of the pod went unseen: it goes now, before the next pod has its address.
		putBack()
		e.ok(d.RemoveHostPorts(e.ctx, owner, nil))
		e.ok(d.Disable(e.ctx, owner, FeatureAdmit|FeaturePublish, HeldBy(ep.Addrs)))
		e.ok(e.h.DelLink(ep.HostIfindex))
	}
}

// takePin takes away the pin of a map, which stays where programs use it, and returns what puts it back.
func (e *env) takePin(d *Datapath, name string) (putBack func()) {
	e.t.Helper()
	pin, kept := d.tree.Paths.MapPin(name), filepath.Join(e.o.Config.BPFFS, "kept")
	e.ok(os.Rename(pin, kept))
	return func() {
		e.t.Helper()
		e.ok(os.Rename(kept, pin))
	}
}

// What another program put in our place on one pod's device is that pod's loss: neither does it keep the node from an upgrade, nor
// does the upgrade take from the device what it has of us.
func TestPrivilegedUpgradeStrangerOnHostEnd(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, hook.HowClsact)
	e.uplink()
	d := e.open()
	spoiled, whole := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16")
	e.ok(d.Enable(e.ctx, spoiled, FeaturePublish))
	e.ok(d.Enable(e.ctx, whole, FeaturePublish))
	ours, taken := hook.FromPod(), hook.ToPod() // in the order in which they are attached
	for _, args := range [][]string{
		{"filter", "del", "dev", spoiled.HostIfName, taken.Direction(), "pref", "21324"},
		{"filter", "add", "dev", spoiled.HostIfName, taken.Direction(), "pref", "21324", "protocol", "all", "u32", "match", "u32", "0", "0"},
	} {
		if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
			t.Fatalf("tc %v: %v: %s", args, err, out)
		}
	}
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d2, err := Open(e.ctx, e.o)
	if err != nil {
		t.Errorf("the upgrade: %v", err)
		d2 = d
	}
	a := attach.NewAttacher(d2.tree, "")
	defer a.Close()
	for h, want := range map[hook.Hook]string{ours: hook.HowClsact, taken: ""} {
		at, err := a.At(spoiled.HostIfindex, h)
		e.ok(err)
		if at.How != want {
			t.Errorf("%s hangs there by %q, want %q", h.Program, at.How, want)
		}
	}
	e.ok(d2.CheckEndpoint(e.ctx, whole, FeaturePublish))
	e.ok(d2.Enable(e.ctx, e.pod("pod3", "10.1.0.4/16"), FeaturePublish))
	if err := d2.CheckEndpoint(e.ctx, spoiled, FeaturePublish); !errors.Is(err, ErrDiffers) {
		t.Errorf("a pod without one of our programs: %v", err)
	}
}
