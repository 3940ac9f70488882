// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestPrivilegedLoadOnce(t *testing.T) {
	e := newEnv(t)
	if _, err := OpenExisting(e.ctx, e.o); !errors.Is(err, ErrNotLoaded) {
		t.Fatalf("OpenExisting before any load: %v", err)
	}
	d := e.open()
	id, ok := d.tree.Paths.Committed()
	if !ok {
		t.Fatal("no committed programs")
	}
	first := programID(t, d.tree.Paths.BuildDir(id), hook.FromPod())
	again := e.open()
	if got := programID(t, again.tree.Paths.BuildDir(id), hook.FromPod()); got != first {
		t.Errorf("the second Open loaded again: program %d, then %d", first, got)
	}
	old, err := OpenExisting(e.ctx, e.o)
	e.ok(err)
	e.ok(old.Close())
	s, err := d.Status(e.ctx)
	e.ok(err)
	if s.Backend != "ebpf" || s.Reason == "" || len(s.Probes) == 0 || s.Build != id || len(s.Maps) != len(pintree.SharedMaps()) {
		t.Errorf("status: %+v", s)
	}
	for _, p := range s.Probes {
		t.Logf("%-28s %-8s %s", p.Name, p.Answer, p.Reason)
		want := AnswerYes
		switch {
		case p.Name == programs.ProbeTCX && !bpfsys.KernelAtLeast(6, 6) || p.Name == programs.ProbeCoarse && !bpfsys.KernelAtLeast(5, 11), p.Name == programs.ProbeSkNetns && !bpfsys.KernelAtLeast(6, 15), p.Name == programs.ProbeNetkit && !bpfsys.KernelAtLeast(6, 7):
			want = AnswerNo
		case p.Name == programs.ProbeFIBSrc && !bpfsys.KernelAtLeast(6, 7) && p.Answer != AnswerUnclear: // stable kernels have taken it over
			continue
		case p.Name == programs.ProbeFQ && p.Answer != AnswerUnclear: // a module that not every kernel has
			continue
		case p.Name == programs.ProbeNetkit: // a part that not every kernel is built with
			continue
		case p.Name == programs.ProbeMountNS || p.Name == programs.ProbeJIT: // say where the test runs
			continue
		}
		if p.Answer != want {
			t.Errorf("probe %s: %s %s", p.Name, p.Answer, p.Reason)
		}
	}
}

func programID(t testing.TB, dir string, h hook.Hook) uint32 {
	t.Helper()
	p, err := pintree.ProgramAt(dir, h.Program)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != h.Program {
		t.Errorf("the kernel calls %s %q", h.Program, info.Name)
	}
	return info.ID
}

type readObject func() (*ebpf.CollectionSpec, error)

// everyObject is where all programs come from, by the names of loadapi.LoadRequest.
func everyObject() map[string]readObject {
	return map[string]readObject{
		"sl_from_pod": objects.LoadFromPod, "sl_to_pod": objects.LoadToPod,
		"sl_from_uplink": objects.LoadFromUplink, "sl_to_uplink": objects.LoadToUplink,
		"sl_from_l3dev": objects.LoadFromUplink, "sl_to_l3dev": objects.LoadToUplink,
		"sl_from_clients": objects.LoadFromUplink, "sl_to_clients": objects.LoadToUplink,
		"sl_ns_egress": objects.LoadNsEgress, "sl_ns_ingress": objects.LoadNsIngress,
		"sl_edt": objects.LoadEdt, "sl_xdp_denylist": objects.LoadXDPDenylist, "sl_mac_check": objects.LoadMACCheck, "sl_parent": objects.LoadParent, loadapi.SockLB: objects.LoadSockLB,
	}
}

// specsOf reads objects.
func specsOf(t *testing.T, names []string) map[string]*ebpf.CollectionSpec {
	t.Helper()
	all := everyObject()
	specs := make(map[string]*ebpf.CollectionSpec)
	for _, name := range names {
		spec, err := all[name]()
		if err != nil {
			t.Fatal(err)
		}
		specs[name] = spec
	}
	return specs
}

// The objects together have the maps that Go names, no others, and where two have one of them they agree.
func TestMapNames(t *testing.T) {
	specs := specsOf(t, slices.Collect(maps.Keys(everyObject())))
	want := make(map[string]bool)
	for _, name := range pintree.SharedMaps() {
		want[name] = true
	}
	got := make(map[string]bool)
	first := make(map[string]*ebpf.MapSpec)
	for prog, spec := range specs {
		for name, s := range spec.Maps {
			if s.Pinning != ebpf.PinByName {
				continue
			}
			got[name] = true
			if o := first[name]; o == nil {
				first[name] = s
			} else if o.Type != s.Type || o.KeySize != s.KeySize || o.ValueSize != s.ValueSize || o.MaxEntries != s.MaxEntries || o.Flags != s.Flags {
				t.Errorf("map %s of %s is %v, elsewhere %v", name, prog, s, o)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shared maps (-named in Go, +in the objects):\n%s", diff)
	}
}

// Another configuration is another build: programs are replaced where they hang, maps keep what they hold.
func TestPrivilegedUpgradeKeepsMapsAndDevices(t *testing.T) {
	for _, how := range []string{"auto", "tcx", "clsact"} {
		t.Run(how, func(t *testing.T) {
			if how == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, how)
			e.uplink()
			d := e.open()
			ep := e.pod("pod1", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
			before, _ := d.tree.Paths.Committed()

			e.o.Config.AntiSpoof = false
			e2 := e.open()
			after, _ := e2.tree.Paths.Committed()
			if before == after {
				t.Fatal("the build did not change")
			}
			if diff := cmp.Diff([]string{pintree.BuildPrefix + after}, mustNames(t, e2.tree.Paths.Progs())); diff != "" {
				t.Errorf("programs left: %s", diff)
			}
			e.wantInForce(e2, 2)
			if eps, err := e2.Endpoints(e.ctx); err != nil || len(eps) != 1 {
				t.Errorf("endpoints after the upgrade: %+v %v", eps, err)
			}
			// The old handle goes on working, with the programs in force.
			e.ok(d.Enable(e.ctx, e.pod("pod2", "10.1.0.3/16"), FeatureAdmit))
		})
	}
}

func mustNames(t testing.TB, dir string) []string {
	t.Helper()
	n, err := pintree.Names(dir)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPrivilegedIncompatibleMapIsRefused(t *testing.T) {
	e := newEnv(t)
	d, err := newDatapath(e.o)
	e.ok(err)
	e.ok(d.tree.Paths.BPFFS.Ensure(e.o.RunDir))
	e.ok(d.tree.Paths.Make())
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: pintree.MapEndpoints, Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: 4})
	e.ok(err)
	e.ok(m.Pin(d.tree.Paths.MapPin(pintree.MapEndpoints)))
	_, err = Open(e.ctx, e.o)
	if !errors.Is(err, ErrIncompatible) {
		t.Fatalf("got %v, want ErrIncompatible", err)
	}
	if _, ok := d.tree.Paths.Committed(); ok {
		t.Error("programs were committed over a map of another layout")
	}
	e.ok(m.Close())
}

// A change of mapSizes must not stop a node whose maps are pinned already.
func TestPrivilegedMapSizesStay(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Conntrack = 4096
	e.ok(e.open().Close())
	e.o.Config.MapSizes.Conntrack = 8192
	e.o.Config.AntiSpoof = false
	d := e.open()
	m, err := d.tree.Pinned(pintree.MapConntrack)
	e.ok(err)
	if m.MaxEntries() != 4096 {
		t.Errorf("flows: %d entries", m.MaxEntries())
	}
}

// An earlier build had no places in the table of connections. Its connections stay, and the places fit the table that is pinned.
func TestPrivilegedUpgradeMakesPlaces(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Conntrack = 4096
	d := e.open()
	pinned, err := ebpf.LoadPinnedMap(d.tree.Paths.MapPin(pintree.MapConntrack), nil)
	e.ok(err)
	defer pinned.Close()
	key := bpfgen.TypesSlTuple{Proto: 6, LocalPort: 1}
	e.ok(pinned.Put(&key, &bpfgen.TypesSlCtEntry{Flags: uint32(bpfgen.TypesSlCtFlagSL_CT_ASSURED), Owner: 7}))
	for _, name := range []string{pintree.MapConntrackPlaces, pintree.MapConntrackShares, pintree.MapConntrackTurnover, pintree.MapConntrackCounts, pintree.MapHostPortOutside} {
		e.ok(os.Remove(d.tree.Paths.MapPin(name)))
	}
	e.ok(d.Close())
	e.o.Config.AntiSpoof = false // another build
	e.o.Config.MapSizes.Conntrack = 65536
	d = e.open()
	ct, err := d.tree.Pinned(pintree.MapConntrack)
	e.ok(err)
	if use, err := conntrack.New(ct).Use(conntrack.Now()); use.Entries != 1 || err != nil {
		t.Errorf("%+v after the upgrade, %v", use, err)
	}
	unassured, err := d.tree.Pinned(pintree.MapConntrackUnassured)
	e.ok(err)
	id, ok := d.tree.Paths.Committed()
	if !ok {
		t.Fatal("no programs are committed")
	}
	cpus, err := bpfsys.PossibleCPUs()
	e.ok(err)
	for name, want := range map[string]uint32{
		"cfg_ct_places": loadapi.ConntrackPlaces(4096, cpus), "cfg_ct_pending": loadapi.PendingPlaces(unassured.MaxEntries(), cpus),
	} {
		if got := binary.NativeEndian.Uint32(constantIn(t, d.tree.Paths.BuildDir(id), hook.FromPod(), objects.LoadFromPod, name)); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// Whatever a killed load left is repaired by the next one.
func TestPrivilegedLoadAfterCrash(t *testing.T) {
	tests := []struct {
		name  string
		crash func(e *env, d *Datapath)
	}{
		{"directories only", func(*env, *Datapath) {}},
		{"some maps pinned", func(e *env, d *Datapath) {
			spec := specsOf(e.t.(*testing.T), []string{"sl_from_pod"})["sl_from_pod"].Maps[pintree.MapEndpoints]
			spec.Pinning = ebpf.PinNone
			m, err := ebpf.NewMap(spec)
			e.ok(err)
			e.ok(m.Pin(d.tree.Paths.MapPin(pintree.MapEndpoints)))
			e.ok(m.Close())
		}},
		{"programs pinned, not committed", func(e *env, d *Datapath) {
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			e.ok(d.load(e.ctx, k))
			e.ok(os.Rename(d.tree.Paths.BuildDir(k.Build()), d.tree.Paths.FreshDir(k.Build())))
			e.ok(os.Remove(filepath.Join(d.tree.Paths.FreshDir(k.Build()), "sl_from_pod")))
		}},
		{"committed, decision lost", func(e *env, d *Datapath) {
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			e.ok(d.load(e.ctx, k))
			e.ok(os.RemoveAll(e.o.RunDir))
		}},
		{"old build still there", func(e *env, d *Datapath) {
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			e.ok(d.load(e.ctx, k))
			e.ok(os.Rename(d.tree.Paths.BuildDir(k.Build()), d.tree.Paths.BuildDir("0123456789abcdef")))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.uplink()
			d, err := newDatapath(e.o)
			e.ok(err)
			e.ok(d.tree.Paths.BPFFS.Ensure(e.o.RunDir))
			e.ok(d.tree.Paths.Make())
			tt.crash(e, d)
			e.ok(d.Close())

			d = e.open()
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			if diff := cmp.Diff([]string{pintree.BuildPrefix + k.Build()}, mustNames(t, d.tree.Paths.Progs())); diff != "" {
				t.Errorf("programs: %s", diff)
			}
			e.ok(d.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeaturePublish))
			_, err = d.Status(e.ctx)
			e.ok(err)
		})
	}
}

func TestPrivilegedUnavailable(t *testing.T) {
	e := newEnv(t)
	e.o.Config.BPFFS = filepath.Join(t.TempDir(), "missing")
	_, err := Open(e.ctx, e.o)
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	s, err := Decision(e.ctx, e.o)
	e.ok(err)
	if s.Backend != "none" || s.Reason == "" {
		t.Errorf("decision: %+v", s)
	}
}

// What the kernel refused a short while ago is not asked again; anything that may have changed is.
func TestPrivilegedRefusalIsRemembered(t *testing.T) {
	kernelSaidNo := []Probe{{Name: programs.ProbeRedirectPeer, Answer: AnswerNo, Reason: "by the test", Required: true}}
	tests := []struct {
		name   string
		change func(s *programs.Decision)
		again  bool
	}{
		{"the same question", func(*programs.Decision) {}, false},
		{"nearly too long ago", func(s *programs.Decision) { s.Decided = time.Now().Add(-programs.RefusalAge + time.Minute) }, false},
		{"too long ago", func(s *programs.Decision) { s.Decided = time.Now().Add(-programs.RefusalAge - time.Second) }, true},
		{"in the future", func(s *programs.Decision) { s.Decided = time.Now().Add(time.Hour) }, true},
		{"another boot", func(s *programs.Decision) { s.BootID = "other" }, true},
		{"another kernel", func(s *programs.Decision) { s.Kernel = "other" }, true},
		{"another build or configuration", func(s *programs.Decision) { s.Asked = "other" }, true},
		{"a bpffs that is there by now", func(s *programs.Decision) { s.Probes[0].Name = programs.ProbeBPFFS }, true},
		{"capabilities that this process has", func(s *programs.Decision) { s.Probes[0].Name = programs.ProbeCaps }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			d, err := newDatapath(e.o)
			e.ok(err)
			k, err := programs.ConstantsOf(d.tree)
			e.ok(err)
			s := &programs.Decision{Backend: programs.BackendNone, Reason: "by the test", Asked: programs.ProbeKey(d.tree, k), Probes: slices.Clone(kernelSaidNo)}
			e.ok(programs.WriteDecision(d.tree, s))
			tt.change(s)
			raw, err := json.Marshal(s)
			e.ok(err)
			e.ok(pintree.WriteFile(d.tree.Paths.State, raw))
			got, err := Open(e.ctx, e.o)
			if err == nil {
				e.ok(got.Close())
			}
			if again := !errors.Is(err, ErrUnavailable); again != tt.again {
				t.Errorf("asked again: %v (%v), want %v", again, err, tt.again)
			}
		})
	}
}

// A refusal of the kernel is written down with what it was about.
func TestPrivilegedRefusalIsWrittenDown(t *testing.T) {
	e := newEnv(t)
	d, err := newDatapath(e.o)
	e.ok(err)
	k, err := programs.ConstantsOf(d.tree)
	e.ok(err)
	if err := programs.Refuse(d.tree, k, nil, fmt.Errorf("%w: sl_from_pod", loadapi.ErrRefused)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if err := programs.CachedRefusal(d.tree, k); !errors.Is(err, ErrUnavailable) || strings.Count(err.Error(), ErrUnavailable.Error()) != 1 {
		t.Errorf("remembered as %v", err)
	}
}

// What a killed load left can be removed without loading first.
func TestPrivilegedUnloadOfAnythingLeft(t *testing.T) {
	e := newEnv(t)
	e.ok(Unload(e.ctx, e.o))
	d, err := newDatapath(e.o)
	e.ok(err)
	e.ok(d.tree.Paths.BPFFS.Ensure(e.o.RunDir))
	e.ok(d.tree.Paths.Make())
	if _, err := OpenExisting(e.ctx, e.o); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("OpenExisting: %v", err)
	}
	e.ok(Unload(e.ctx, e.o))
	if left := pins(e); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
