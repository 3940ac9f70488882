// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// The kernel does not run programs for socket calls by PROG_TEST_RUN, so that
// there are no walks: test/e2e has them meet real sockets.

// sockPrograms loads the programs for socket calls over the maps of o.
func sockPrograms(tb testing.TB, o *programSet) (*ebpf.CollectionSpec, map[string]*ebpf.Program) {
	tb.Helper()
	spec, err := objects.LoadSockLB()
	if err != nil {
		tb.Fatal(err)
	}
	o.load(tb, spec, loadOptions{})
	replace := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if o.maps[name] != nil {
			replace[name] = o.maps[name]
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: replace,
		Programs:        ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats},
	})
	if err != nil {
		tb.Fatal(verifierText(err))
	}
	tb.Cleanup(coll.Close)
	return spec, coll.Programs
}

func TestPrivilegedLoadSockets(t *testing.T) {
	_, programs := sockPrograms(t, mustLoad(t, loadOptions{}))
	if len(programs) != 9 {
		t.Errorf("%d programs, want nine", len(programs))
	}
	for name, p := range programs {
		want := ebpf.CGroupSockAddr
		if name == objects.SockLBProgSlSockRelease {
			want = ebpf.CGroupSock
		}
		if p.Type() != want {
			t.Errorf("%s is a %s program, want %s", name, p.Type(), want)
		}
	}
}
