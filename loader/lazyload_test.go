// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// A load makes every map, though some of the programs that use them come later.
func TestLoadMakesEveryMap(t *testing.T) {
	specs := specsOf(t, programs.AlwaysLoaded())
	made := make(map[string]bool)
	for _, spec := range specs {
		for name := range spec.Maps {
			made[name] = true
		}
	}
	for _, name := range pintree.SharedMaps() {
		if !made[name] {
			t.Errorf("%s is of no program that every load verifies", name)
		}
	}
}

// Each hook's program comes from one place, and that has it.
func TestEveryHookHasAnObject(t *testing.T) {
	all := everyObject()
	for _, h := range hook.All() {
		if always, later := slices.Contains(programs.AlwaysLoaded(), h.Program), programs.OnDemand(h) != nil; always == later || all[h.Program] == nil {
			t.Errorf("%s: at every load %t, on demand %t, an object %t", h.Program, always, later, all[h.Program] != nil)
		}
	}
	sockets := specsOf(t, []string{loadapi.SockLB})[loadapi.SockLB].Programs
	for _, h := range hook.Sockets() {
		if p := sockets[h.Program]; p == nil || uint32(p.AttachType) != uint32(h.Attach) {
			t.Errorf("%s for %s: %+v", h.Program, h.Name, p)
		}
	}
	if len(sockets) != len(hook.Sockets()) {
		t.Errorf("%d programs for sockets, %d hooks", len(sockets), len(hook.Sockets()))
	}
}

// onDemandPins lists the programs in force that not every load has.
func onDemandPins(t *testing.T, d *Datapath) []string {
	t.Helper()
	dir, err := d.tree.CommittedDir()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(mustNames(t, dir), func(name string) bool {
		return !slices.ContainsFunc(hook.All(), func(h hook.Hook) bool {
			return h.Program == name && slices.Contains(slices.Concat(hook.OfL3Uplink(), hook.OfPodns()), h)
		})
	})
}

// Programs of devices that are rare are verified with the first of them, with the constants of the others.
func TestPrivilegedOnDemand(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	if got := onDemandPins(t, d); len(got) != 0 {
		t.Errorf("before any device: %v", got)
	}
	if _, err := d.Status(e.ctx); err != nil {
		t.Error(err)
	}
	ep, in := e.insider("pod1", "192.0.2.20/24")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	want := []string{hook.NsEgress().Program, hook.NsIngress().Program}
	if diff := cmp.Diff(want, onDemandPins(t, d)); diff != "" {
		t.Error(diff)
	}
	if got := strings.Count(filters(in), " name sl_ns_"); got != 2 {
		t.Errorf("%d filters", got)
	}
	dir, err := d.tree.CommittedDir()
	e.ok(err)
	for _, name := range []string{objects.FromPodVarCfgCbCookie1, objects.FromPodVarCfgCbCookie2, objects.FromPodVarCfgSnatSecret} {
		pod := constantIn(t, dir, hook.FromPod(), objects.LoadFromPod, name)
		own := constantIn(t, dir, hook.NsEgress(), objects.LoadNsEgress, name)
		if !bytes.Equal(pod, own) || name != objects.FromPodVarCfgCbCookie2 && !slices.ContainsFunc(pod, func(b byte) bool { return b != 0 }) {
			t.Errorf("%s: %x beside %x", name, pod, own)
		}
	}
}

// constantIn reads a constant of a pinned program.
func constantIn(t *testing.T, dir string, h hook.Hook, read readObject, name string) []byte {
	t.Helper()
	spec, err := read()
	if err != nil {
		t.Fatal(err)
	}
	v, ok := spec.Variables[name]
	if !ok {
		t.Fatalf("no constant %s", name)
	}
	info, err := pinnedProgram(t, dir, h).Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if info, err := m.Info(); err != nil || !strings.HasPrefix(info.Name, ".rodata") {
			continue
		}
		value, err := m.LookupBytes(uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		return value[v.Offset : int(v.Offset)+len(v.Value)]
	}
	t.Fatalf("%s has no constants", h.Program)
	return nil
}

// A load that was killed between two programs of a group, or whose pin an operator removed, is completed by the next device.
func TestPrivilegedOnDemandHalf(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	one, _ := e.insider("pod1", "192.0.2.20/24")
	two, in := e.insider("pod2", "192.0.2.21/24")
	e.ok(d.Enable(e.ctx, one, FeatureAdmit))
	dir, err := d.tree.CommittedDir()
	e.ok(err)
	kept := programID(t, dir, hook.NsIngress())
	e.ok(os.Remove(filepath.Join(dir, hook.NsEgress().Program)))
	e.ok(d.Enable(e.ctx, two, FeatureAdmit))
	if got := strings.Count(filters(in), " name sl_ns_"); got != 2 {
		t.Errorf("%d filters", got)
	}
	if got := programID(t, dir, hook.NsIngress()); got != kept {
		t.Errorf("the program that was there was loaded again")
	}
}

// What a device has asked for is verified before an upgrade touches anything.
func TestPrivilegedOnDemandUpgrade(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d = e.open()
	want := []string{hook.NsEgress().Program, hook.NsIngress().Program}
	if diff := cmp.Diff(want, onDemandPins(t, d)); diff != "" {
		t.Error(diff)
	}
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	if got := strings.Count(filters(in), " name sl_ns_"); got != 2 {
		t.Errorf("%d filters", got)
	}
}

// Programs of another build or configuration are not mixed into a set.
func TestPrivilegedOnDemandOfAnother(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	e.open()
	ep, _ := e.insider("pod1", "192.0.2.20/24")
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d, err := OpenExisting(e.ctx, e.o)
	e.ok(err)
	if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrNotLoaded) || !strings.Contains(err.Error(), "sl_ns_egress") {
		t.Errorf("error: %v", err)
	}
	e.noPodnsDevice(d)
	if got := onDemandPins(t, d); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	e.ok(d.Close())
	d = e.open()
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
}
