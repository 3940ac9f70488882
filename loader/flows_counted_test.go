// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// A walk of the connections counts what Status would count, whatever it looks for, and Status believes it.
func TestPrivilegedFlowsCounted(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	m, err := ebpf.LoadPinnedMap(d.tree.Paths.MapPin(pintree.MapConntrack), nil)
	e.ok(err)
	defer m.Close()
	for port, flags := range []uint32{0, uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE), 0} {
		e.ok(m.Put(&bpfgen.TypesSlTuple{Proto: 6, LocalPort: uint16(port)}, &bpfgen.TypesSlCtEntry{Flags: flags, Owner: 7}))
	}
	counted, udp := map[string]int{}, 0
	for _, err := range d.Flows(e.ctx, FlowFilter{Proto: 17, Counted: counted}) {
		e.ok(err)
		udp++
	}
	if udp != 0 || counted[pintree.MapConntrack] != 3 {
		t.Errorf("%d flows of UDP, %v", udp, counted)
	}
	entries := func(st *Status, err error) map[string]int {
		t.Helper()
		e.ok(err)
		all := map[string]int{}
		for _, m := range st.Maps {
			all[m.Name] = m.Entries
		}
		return all
	}
	want := entries(d.Status(e.ctx))
	for name, n := range counted {
		if n != want[name] {
			t.Errorf("%s: %d entries counted, Status says %d", name, n, want[name])
		}
	}
	if len(counted) != 2 {
		t.Errorf("counted %v, not both tables", counted)
	}
	if got := entries(d.StatusCounted(e.ctx, map[string]int{pintree.MapConntrack: 9})); got[pintree.MapConntrack] != 9 || got[pintree.MapEndpoints] != want[pintree.MapEndpoints] {
		t.Errorf("%v", got)
	}
}
