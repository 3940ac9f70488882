// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

// programSet is the programs over one set of maps, none of it pinned.
type programSet struct {
	podEgress, podIngress, uplinkIngress, uplinkEgress *ebpf.Program
	ownEgress, ownIngress, edt, macCheck, parent       *ebpf.Program
	maps                                               map[string]*ebpf.Map
	views                                              map[string]*bpfsys.Map // the same, as pkg/maps has them
}

func (o *programSet) programs() []*ebpf.Program {
	return []*ebpf.Program{o.podEgress, o.podIngress, o.uplinkIngress, o.uplinkEgress, o.ownEgress, o.ownIngress, o.edt, o.macCheck, o.parent}
}

// loadOptions is how objects are loaded; zero is how they are shipped.
type loadOptions struct {
	vars  map[string]uint32    // load-time configuration by variable name
	sizes map[string]uint32    // max_entries by map name
	seams bool                 // see addSeams
	maps  map[string]*ebpf.Map // made before, to be shared
}

// part is an object: its program and how to get it.
type part struct {
	load func() (*ebpf.CollectionSpec, error)
	name string
	into func(*programSet) **ebpf.Program
}

// parts are the objects whose programs take packets.
var parts = []part{
	{objects.LoadFromPod, "sl_from_pod", func(o *programSet) **ebpf.Program { return &o.podEgress }},
	{objects.LoadToPod, "sl_to_pod", func(o *programSet) **ebpf.Program { return &o.podIngress }},
	{objects.LoadFromUplink, "sl_from_uplink", func(o *programSet) **ebpf.Program { return &o.uplinkIngress }},
	{objects.LoadToUplink, "sl_to_uplink", func(o *programSet) **ebpf.Program { return &o.uplinkEgress }},
	{objects.LoadNsEgress, "sl_ns_egress", func(o *programSet) **ebpf.Program { return &o.ownEgress }},
	{objects.LoadNsIngress, "sl_ns_ingress", func(o *programSet) **ebpf.Program { return &o.ownIngress }},
	{objects.LoadEdt, "sl_edt", func(o *programSet) **ebpf.Program { return &o.edt }},
	{objects.LoadMACCheck, "sl_mac_check", func(o *programSet) **ebpf.Program { return &o.macCheck }},
	{objects.LoadParent, "sl_parent", func(o *programSet) **ebpf.Program { return &o.parent }},
}

// sockets is the object for socket calls, which has several programs.
var sockets = part{load: objects.LoadSockLB, name: "sl_socklb"}

func newObjects() *programSet {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // maps are charged to it before Linux 5.11
	return &programSet{maps: map[string]*ebpf.Map{}, views: map[string]*bpfsys.Map{}}
}

// share makes m the map of that name.
func (o *programSet) share(tb testing.TB, name string, m *ebpf.Map) {
	tb.Helper()
	o.maps[name], o.views[name] = m, bpftest.View(tb, m)
}

// mustLoad loads everything; it goes with the test.
func mustLoad(tb testing.TB, opts loadOptions) *programSet {
	tb.Helper()
	o := newObjects()
	for name, m := range opts.maps {
		o.share(tb, name, m)
	}
	for _, part := range parts {
		spec, err := part.load()
		if err != nil {
			tb.Fatal(err)
		}
		if opts.seams {
			addSeams(spec)
		}
		o.load(tb, spec, opts)
		*part.into(o) = o.take(tb, spec, part.name)
	}
	spec, err := xdp.load()
	if err != nil {
		tb.Fatal(err)
	}
	o.load(tb, spec, opts) // its maps live as long as the others
	return o
}

// load configures spec and makes the maps that earlier objects have not made yet.
func (o *programSet) load(tb testing.TB, spec *ebpf.CollectionSpec, opts loadOptions) {
	tb.Helper()
	for name, ms := range spec.Maps {
		if ms.Pinning != ebpf.PinByName {
			continue
		}
		ms.Pinning = ebpf.PinNone
		if n := opts.sizes[name]; n != 0 {
			ms.MaxEntries = n
		}
		if o.maps[name] != nil {
			continue
		}
		m, err := ebpf.NewMap(ms)
		if err != nil {
			tb.Fatalf("map %s: %v", name, err)
		}
		tb.Cleanup(func() { m.Close() })
		o.share(tb, name, m)
	}
	if v := spec.Variables["cfg_ct_places"]; v != nil && o.maps["sl_ct_places"] != nil {
		n := o.maps["sl_ct_places"].MaxEntries() / 3 // for connections that wait for an answer; the rest is for assured ones
		if err := errors.Join(v.Set(2*n), spec.Variables["cfg_ct_pending"].Set(n)); err != nil {
			tb.Fatal(err)
		}
	}
	if v := spec.Variables["cfg_nfct_offset"]; v != nil && opts.seams {
		if err := errors.Join(v.Set(uint32(1)), spec.Variables["cfg_nf_tuples_offset"].Set(uint32(1))); err != nil { // any: the seam reads nothing
			tb.Fatal(err)
		}
	}
	if v := spec.Variables["cfg_csum_mask"]; v != nil && opts.seams {
		for name, value := range csumSeam {
			if err := spec.Variables[name].Set(value); err != nil {
				tb.Fatal(err)
			}
		}
	}
	for name, v := range opts.vars {
		if spec.Variables[name] == nil {
			continue
		}
		if err := spec.Variables[name].Set(v); err != nil {
			tb.Fatalf("variable %s: %v", name, err)
		}
	}
}

func (o *programSet) take(tb testing.TB, spec *ebpf.CollectionSpec, name string) *ebpf.Program {
	tb.Helper()
	replace := map[string]*ebpf.Map{}
	for n := range spec.Maps {
		if o.maps[n] != nil {
			replace[n] = o.maps[n]
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: replace,
		Programs:        ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats},
	})
	if err != nil {
		tb.Fatalf("%s: %s", name, verifierText(err))
	}
	p := coll.DetachProgram(name)
	coll.Close()
	tb.Cleanup(func() { p.Close() })
	return p
}
