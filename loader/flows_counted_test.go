// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// A walk of the connections counts what Status would count, whatever it looks for, and Status believes it.
func TestPrivilegedFlowsCounted(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	m, err := ebpf.LoadPinnedMap(d.tree.Paths.MapPin(pintree.MapConntrack), nil)
	e.ok(err)
	defer m.Close()
	masqueraded, reverse, reset := uint32(bpfgen.TypesSlCtFlagSL_CT_SNAT), uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE), uint32(bpfgen.TypesSlCtFlagSL_CT_RST)
	for port, flags := range []uint32{masqueraded, reverse, 0, reset} {
		now := uint64(conntrack.Now())
		e.ok(m.Put(&bpfgen.TypesSlTuple{Proto: 6, LocalPort: uint16(port)}, &bpfgen.TypesSlCtEntry{Flags: flags, Owner: 7, LastSeen: now}))
	}
	counted, udp := map[string]conntrack.Use{}, 0
	for _, err := range d.Flows(e.ctx, FlowFilter{Proto: 17, Counted: counted}) {
		e.ok(err)
		udp++
	}
	if udp != 0 || counted[pintree.MapConntrack] != (conntrack.Use{Entries: 4, Living: 3}) {
		t.Errorf("%d flows of UDP, %v", udp, counted)
	}
	use := func(st *Status, err error) map[string]conntrack.Use {
		t.Helper()
		e.ok(err)
		all := map[string]conntrack.Use{}
		for _, m := range st.Maps {
			all[m.Name] = conntrack.Use{Entries: m.Entries, Living: m.InUse}
		}
		return all
	}
	want := use(d.Status(e.ctx))
	for name, n := range counted {
		if n != want[name] {
			t.Errorf("%s: counted %+v, Status says %+v", name, n, want[name])
		}
	}
	if len(counted) != 2 {
		t.Errorf("counted %v, not both tables", counted)
	}
	before := conntrack.Use{Entries: 9, Living: 4}
	if got := use(d.StatusCounted(e.ctx, map[string]conntrack.Use{pintree.MapConntrack: before})); got[pintree.MapConntrack] != before || got[pintree.MapEndpoints] != want[pintree.MapEndpoints] {
		t.Errorf("%v", got)
	}
}
