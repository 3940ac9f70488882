// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
)

// objects are the four programs over one set of maps, none of it pinned.
type objects struct {
	podEgress, podIngress, uplinkIngress, uplinkEgress *ebpf.Program
	maps                                               map[string]*ebpf.Map
}

func (o *objects) programs() []*ebpf.Program {
	return []*ebpf.Program{o.podEgress, o.podIngress, o.uplinkIngress, o.uplinkEgress}
}

// loadOptions is how objects are loaded; zero is how they are shipped.
type loadOptions struct {
	vars  map[string]uint32 // load-time configuration by variable name
	sizes map[string]uint32 // max_entries by map name
	seams bool              // see addSeams
}

// parts names the objects, their program and how to get them.
var parts = []struct {
	load func() (*ebpf.CollectionSpec, error)
	name string
	into func(*objects) **ebpf.Program
}{
	{bpfobj.LoadPodEgress, "sl_pod_egress", func(o *objects) **ebpf.Program { return &o.podEgress }},
	{bpfobj.LoadPodIngress, "sl_pod_ingress", func(o *objects) **ebpf.Program { return &o.podIngress }},
	{bpfobj.LoadUplinkIngress, "sl_upl_ingress", func(o *objects) **ebpf.Program { return &o.uplinkIngress }},
	{bpfobj.LoadUplinkEgress, "sl_upl_egress", func(o *objects) **ebpf.Program { return &o.uplinkEgress }},
}

// mustLoad loads everything; it goes with the test.
func mustLoad(tb testing.TB, opts loadOptions) *objects {
	tb.Helper()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // maps are charged to it before Linux 5.11
	o := &objects{maps: map[string]*ebpf.Map{}}
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
	return o
}

// load configures spec and makes the maps that earlier objects have not made yet.
func (o *objects) load(tb testing.TB, spec *ebpf.CollectionSpec, opts loadOptions) {
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
		o.maps[name] = m
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

func (o *objects) take(tb testing.TB, spec *ebpf.CollectionSpec, name string) *ebpf.Program {
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
