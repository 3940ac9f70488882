// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// parentPods returns what the parent device knows, and which of our programs it has for that.
func (e *env) parentPods(d *Datapath, parent int) (map[podns.ParentKey]podns.ParentPod, []string) {
	e.t.Helper()
	m, err := d.tree.Pinned(pintree.MapParentPods)
	e.ok(err)
	all, err := podns.NewParents(m).All()
	e.ok(err)
	have := slices.DeleteFunc(hooksOf(e, d, parent), func(h string) bool { return !strings.HasPrefix(h, "parent_") })
	return all, have
}

// A pod with rules has a program on the parent of its device, a second one shares it, and it goes with the last. What hangs there for
// other reasons stays.
func TestPrivilegedParentDevice(t *testing.T) {
	e := newEnv(t)
	up := e.uplink()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	before := hooksOf(e, d, up)
	denying := func(id, addr string) Endpoint {
		ep, _ := e.insider(id, addr)
		ep.Policy = &policy.Policy{Mode: policy.ModeOpen, DenyEgress: true}
		return ep
	}
	first, second := denying("pod1", "192.0.2.20/24"), denying("pod2", "192.0.2.21/24")
	free, _ := e.insider("pod3", "192.0.2.22/24")
	e.ok(d.Enable(e.ctx, free, FeatureAdmit))
	if all, have := e.parentPods(d, up); len(all) != 0 || len(have) != 0 {
		t.Errorf("a pod without rules: %v, programs %v", all, have)
	}
	for range 2 {
		e.ok(d.Enable(e.ctx, first, FeatureAdmit))
	}
	e.ok(d.Enable(e.ctx, second, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, first, FeatureAdmit))
	all, have := e.parentPods(d, up)
	if len(have) != 2 {
		t.Errorf("programs at the parent: %v", have)
	}
	owners := make(map[uint64]bool)
	for k, v := range all {
		owners[v.Owner] = true
		if int(k.Ifindex) != up || v.Device == 0 {
			t.Errorf("%+v: %+v", k, v)
		}
	}
	if len(owners) != 2 {
		t.Errorf("owners: %v", owners)
	}
	e.ok(d.Disable(e.ctx, first.Ref.Owner(), FeatureAdmit, HeldBy(first.Addrs)))
	if all, have := e.parentPods(d, up); len(have) != 2 || len(all) == 0 {
		t.Errorf("the second pod is left: %v, programs %v", all, have)
	}
	e.ok(d.CheckEndpoint(e.ctx, second, FeatureAdmit))

	// The program was taken away, and CHECK says so.
	a := attach.NewAttacher(d.tree, "")
	e.ok(a.Detach(up, hook.OfParent()))
	a.Close()
	if err := d.CheckEndpoint(e.ctx, second, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("without the program: %v", err)
	}
	e.ok(d.Enable(e.ctx, second, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, second, FeatureAdmit))

	// DEL never comes.
	e.ok(d.GC(e.ctx, func(owner uint64) bool { return owner != second.Ref.Owner() }))
	if all, have := e.parentPods(d, up); len(all) != 0 || len(have) != 0 {
		t.Errorf("left by GC: %v, programs %v", all, have)
	}
	if after := hooksOf(e, d, up); !slices.Equal(before, after) {
		t.Errorf("the uplink has %v, had %v", after, before)
	}
	e.ok(d.Enable(e.ctx, first, FeatureAdmit))
	e.ok(d.Unload(e.ctx))
	if left := hooksOf(e, d, up); len(left) != 0 {
		t.Errorf("left by Unload: %v", left)
	}
}

// Two devices of one pod at one parent have rules of their own, or none, and what belongs to neither is under the first one's while it
// is there.
func TestPrivilegedParentSiblings(t *testing.T) {
	e := newEnv(t)
	up := e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	for _, name := range []string{"net2", "net3"} {
		e.ip("link", "add", "link", "eth0", "name", name, "type", "macvlan", "mode", "bridge")
		e.ip("link", "set", name, "netns", ep.Podns.Netns)
		in("ip", "link", "set", name, "up")
	}
	ep.Policy = &policy.Policy{Mode: policy.ModeOpen, DenyEgress: true}
	other, err := ResolvePodns(e.ctx, ep.Podns.Netns, "net2")
	e.ok(err)
	other.Ref, other.Policy = ep.Ref, ep.Policy
	other.Ref.IfName = "net2"
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Enable(e.ctx, other, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, other, FeatureAdmit))
	all, _ := e.parentPods(d, up)
	whole := namespaceKey(all)
	if whole.Netns == 0 {
		t.Log("the kernel does not name namespaces")
		return
	}
	rules := func(dev string) uint32 { return all[whole.WithMAC(macOf(t, in, dev))].Device }
	if one, two, three := rules("net1"), rules("net2"), rules("net3"); one == 0 || two == 0 || one == two || three != 0 || all[whole].Device != one {
		t.Errorf("net1 %d, net2 %d, net3 %d, all others %d", one, two, three, all[whole].Device)
	}
	two := rules("net2")
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	all, _ = e.parentPods(d, up)
	if all[whole].Device != two || all[whole].Flags == 0 || rules("net2") != two {
		t.Errorf("after the first has gone: %+v", all)
	}
	e.ok(d.Disable(e.ctx, other.Ref.Owner(), FeatureAdmit, HeldBy(other.Addrs)))
	if all, have := e.parentPods(d, up); len(all) != 0 || len(have) != 0 {
		t.Errorf("left: %v, programs %v", slices.Collect(maps.Keys(all)), have)
	}
}

// A datapath of a build without this map lets a pod go.
func TestPrivilegedParentOlderPins(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, _ := e.insider("pod1", "192.0.2.20/24")
	ep.Policy = &policy.Policy{Mode: policy.ModeOpen, DenyEgress: true}
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(os.Remove(d.tree.Paths.MapPin(pintree.MapParentPods)))
	next, err := OpenExisting(e.ctx, e.o)
	e.ok(err)
	e.ok(next.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	e.ok(next.GC(e.ctx, func(uint64) bool { return true }))
	e.noPodnsDevice(next)
	e.ok(next.Close())
	e.ok(d.Close())
}

// namespaceKey is the key of all packets of the one namespace that all is about; its Netns is 0 where the kernel names none.
func namespaceKey(all map[podns.ParentKey]podns.ParentPod) (k podns.ParentKey) {
	for k = range all {
		if k.Netns != 0 {
			return k.AnyOf()
		}
	}
	return k
}

func macOf(t *testing.T, in func(...string) string, device string) net.HardwareAddr {
	t.Helper()
	words := strings.Fields(in("ip", "-o", "link", "show", "dev", device))
	mac, err := net.ParseMAC(words[slices.Index(words, "link/ether")+1])
	if err != nil {
		t.Fatal(err)
	}
	return mac
}
