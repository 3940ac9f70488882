// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// nameBefore is the inverse of nameNow.
func nameBefore(names map[string]string, name string) string {
	for old, now := range names {
		if now == name {
			return old
		}
	}
	return name
}

func programBefore(name string) string {
	for old, h := range hook.OldPrograms {
		if h.Program == name {
			return old
		}
	}
	return name
}

// moveAll renames everything in the directory from to what it was called in version 1.
func (e *env) moveAll(from, to string, rename func(string) string) {
	e.t.Helper()
	e.ok(os.MkdirAll(to, 0o700))
	for _, name := range mustNames(e.t, from) {
		e.ok(os.Rename(filepath.Join(from, name), filepath.Join(to, rename(name))))
	}
}

// toVersion1 gives the pins and the filters of d the names that version 1 had. The set of programs counts as that of another build.
func (e *env) toVersion1(d *Datapath, pods []int) (old string) {
	e.t.Helper()
	id, ok := d.tree.Paths.Committed()
	if !ok {
		e.t.Fatal("nothing is loaded")
	}
	for _, index := range pods {
		for _, h := range hook.OfPod() {
			prog, err := pintree.ProgramAt(d.tree.Paths.BuildDir(id), h.Program)
			e.ok(err)
			f := h.Filter()
			f.Name, f.FD = programBefore(h.Program), prog.FD()
			e.ok(e.h.PutBPF(index, f))
			e.ok(prog.Close())
		}
	}
	e.dropTracking(d)
	old = d.tree.Paths.OldDir()
	same := func(name string) string { return name }
	e.moveAll(d.tree.Paths.Maps(), filepath.Join(old, "maps"), func(name string) string { return nameBefore(programs.OldMaps, name) })
	for _, now := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
		pin := filepath.Join(old, "maps", nameBefore(programs.OldMaps, now))
		e.ok(os.Remove(pin))
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 44, ValueSize: programs.OldConntrackValue, MaxEntries: 16}) // as they were
		e.ok(err)
		e.ok(m.Pin(pin))
		e.ok(m.Close())
	}
	e.moveAll(d.tree.Paths.Links(), filepath.Join(old, "links"), func(name string) string {
		device, at, found := strings.Cut(name, "_")
		if !found || !strings.HasPrefix(name, "dev") {
			return name
		}
		return device + "_" + nameBefore(programs.OldHooks, at)
	})
	e.moveAll(d.tree.Paths.Clsact(), filepath.Join(old, "clsact"), same)
	e.moveAll(d.tree.Paths.EDT(), filepath.Join(old, "edt"), same)
	e.moveAll(d.tree.Paths.RoutedDevs(), filepath.Join(old, "podside"), same)
	e.moveAll(d.tree.Paths.Podns(), filepath.Join(old, "own"), same)
	e.moveAll(d.tree.Paths.BuildDir(id), filepath.Join(old, "progs", pintree.BuildPrefix+"0123456789abcdef"), func(name string) string {
		return programBefore(nameBefore(programs.OldInSet, name))
	})
	e.ok(os.Rename(d.tree.Paths.NetnsInode(), filepath.Join(old, "home")))
	e.ok(os.RemoveAll(filepath.Dir(d.tree.Paths.Dir)))
	return old
}

// oneProgramEach wants each hook of the device to have one program.
func (e *env) oneProgramEach(index int) {
	e.t.Helper()
	for _, parent := range []uint32{hook.FromPod().TCParent(), hook.ToPod().TCParent()} {
		list, err := attach.NoneIfGone(e.h.Filters(index, parent))
		e.ok(err)
		n := len(list)
		if bpfsys.KernelAtLeast(6, 6) {
			at := bpfsys.TCXIngress
			if parent == hook.ToPod().TCParent() {
				at = bpfsys.TCXEgress
			}
			links, err := bpfsys.DevicePrograms(index, at)
			e.ok(err)
			n += len(links)
		}
		if n != 1 {
			e.t.Errorf("device %d has %d programs on %#x", index, n, parent)
		}
	}
}

// A datapath with the pins of version 1 is taken over with all that it holds but connections: the programs are replaced where they hang, and no device has
// two of them.
func TestPrivilegedMigrate(t *testing.T) {
	for _, how := range []string{"auto", "clsact"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t)
			setAttach(&e.o, how)
			uplink := e.uplink()
			d := e.open()
			ep := e.pod("pod1", "10.1.0.2/16")
			ep.RouteIfindex, _ = e.veth("cni0")
			e.ok(d.Enable(e.ctx, ep, FeatureMasquerade|FeatureAdmit))
			inside, in := e.insider("pod2", "192.0.2.20/24")
			e.ok(d.Enable(e.ctx, inside, FeatureAdmit))
			ports := []hostport.Mapping{port(8080, "10.1.0.2", 80)}
			ports[0].AllowedSources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			e.ok(d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, ports))
			e.ok(d.DenyAdd(e.ctx, prefixes("203.0.113.0/24")))
			before := pathsBelow(d.tree.Paths.Dir)
			beforePorts, beforeDevices := e.published(d), hooksOf(e, d, uplink)
			old := e.toVersion1(d, []int{ep.HostIfindex})
			e.ok(d.Close())

			// A DEL or the operator's tool comes first: it works with the programs that are there.
			existing, err := OpenExisting(e.ctx, e.o)
			e.ok(err)
			if pintree.Exists(old) || pintree.Exists(filepath.Dir(old)) {
				t.Errorf("left at %s: %v", old, pathsBelow(old))
			}
			id, _ := existing.tree.Paths.Committed()
			if id != "0123456789abcdef" {
				t.Errorf("committed set %s", id)
			}
			e.ok(existing.CheckEndpoint(e.ctx, ep, FeatureMasquerade|FeatureAdmit))
			if err := existing.CheckHostPorts(e.ctx, ep.Ref.Owner(), ports); err != nil {
				t.Errorf("published ports: %v", err)
			}
			if got := e.published(existing); !reflect.DeepEqual(got, beforePorts) {
				t.Errorf("published ports %+v, want %+v", got, beforePorts)
			}
			e.ok(existing.Close())

			// The next ADD replaces the programs.
			now := e.open()
			e.wantInForce(now, 2)
			e.oneProgramEach(ep.HostIfindex)
			e.oneProgramEach(uplink)
			if diff := cmp.Diff(beforeDevices, hooksOf(e, now, uplink)); diff != "" {
				t.Error(diff)
			}
			if got := filters(in); strings.Count(got, " name sl_ns_") != 2 || strings.Contains(got, "sl_own_") {
				t.Errorf("inside the pod:\n%s", got)
			}
			if diff := cmp.Diff(before, pathsBelow(now.tree.Paths.Dir)); diff != "" {
				t.Errorf("pins: %s", diff)
			}
			if list, _, _ := e.denyState(now); len(list) != 1 {
				t.Errorf("denylist: %v", list)
			}
			e.ok(now.CheckEndpoint(e.ctx, ep, FeatureMasquerade|FeatureAdmit))
			e.ok(now.CheckEndpoint(e.ctx, inside, FeatureAdmit))
			e.ok(now.Disable(e.ctx, ep.Ref.Owner(), ^Feature(0), HeldBy(ep.Addrs)))
			e.ok(now.RemoveHostPorts(e.ctx, ep.Ref.Owner(), nil))
			e.ok(now.Unload(e.ctx))
			if pintree.Exists(filepath.Join(e.o.Config.BPFFS, "sluice")) {
				t.Errorf("left after unload: %v", pathsBelow(e.o.Config.BPFFS))
			}
		})
	}
}

// What is killed while it takes over the pins goes on from there.
func TestPrivilegedMigrateAfterKill(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	old := e.toVersion1(d, []int{ep.HostIfindex})
	// Before the set of programs: some maps have both names.
	e.ok(d.tree.Paths.Make())
	e.ok(os.Link(filepath.Join(old, "maps", "sl_host_addrs"), d.tree.Paths.MapPin(pintree.MapNodeAddrs)))
	if _, err := OpenExisting(e.ctx, e.o); err != nil {
		t.Fatal(err)
	}
	// After it: the old tree is there in part.
	e.ok(os.MkdirAll(filepath.Join(old, "maps"), 0o700))
	e.ok(os.Link(d.tree.Paths.MapPin(pintree.MapNodeAddrs), filepath.Join(old, "maps", "sl_host_addrs")))
	now := e.open()
	e.wantInForce(now, 2)
	if pintree.Exists(old) {
		t.Errorf("left: %v", pathsBelow(old))
	}
}

// Unload takes away a datapath with the pins of version 1 too, and so does the sweep for namespaces that have gone.
func TestPrivilegedMigrateUnload(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	e.toVersion1(d, []int{ep.HostIfindex})
	e.ok(d.Close())
	e.ok(Unload(e.ctx, e.o))
	if pintree.Exists(filepath.Join(e.o.Config.BPFFS, "sluice")) {
		t.Errorf("left after unload: %v", pathsBelow(e.o.Config.BPFFS))
	}
	for _, parent := range []uint32{hook.FromPod().TCParent(), hook.ToPod().TCParent()} {
		if list, err := attach.NoneIfGone(e.h.Filters(ep.HostIfindex, parent)); err != nil || len(list) != 0 {
			t.Errorf("filters left: %+v %v", list, err)
		}
	}
}

// The names of version 1 lead to names that there are, each to another one.
func TestOldNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for old, now := range programs.OldMaps {
		if !slices.Contains(pintree.SharedMaps(), now) || slices.Contains(pintree.SharedMaps(), old) || seen[now] {
			t.Errorf("map %s: %s", old, now)
		}
		seen[now] = true
	}
	for old, h := range hook.OldPrograms {
		if slices.ContainsFunc(hook.All(), func(o hook.Hook) bool { return o.Program == old }) || seen[h.Program] {
			t.Errorf("program %s: %s", old, h.Program)
		}
		seen[h.Program] = true
	}
	for _, tt := range [][2]string{{"dev5_pod_egress", "dev5_from_pod"}, {"dev5_upl_ingress", "dev5_from_uplink"}, {"dev5_xdp", "dev5_xdp"}, {"cg_connect4", "cg_connect4"}} {
		if got := programs.LinkNow(tt[0]); got != tt[1] {
			t.Errorf("%s: %s, want %s", tt[0], got, tt[1])
		}
	}
}
