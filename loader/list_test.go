// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

func tuple(proto uint8, local, remote string) bpfgen.TypesSlTuple {
	l, r := netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)
	return bpfgen.TypesSlTuple{
		Local: codec.Addr(l.Addr()), LocalPort: codec.Port(l.Port()), Remote: codec.Addr(r.Addr()), RemotePort: codec.Port(r.Port()), Proto: proto,
	}
}

func TestPrivilegedFlows(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	now := uint64(conntrack.Now())
	const nat = uint32(bpfgen.TypesSlCtFlagSL_CT_SNAT | bpfgen.TypesSlCtFlagSL_CT_POD_OPENED)
	put := func(name string, k bpfgen.TypesSlTuple, v bpfgen.TypesSlCtEntry) {
		m, err := d.tree.Pinned(name)
		e.ok(err)
		e.ok(bpfsys.Put(m, k, v))
	}
	inside := tuple(unix.IPPROTO_TCP, "10.1.0.2:40000", "198.51.100.1:443")
	outside := tuple(unix.IPPROTO_TCP, "192.0.2.10:40000", "198.51.100.1:443")
	put(pintree.MapConntrack, inside, bpfgen.TypesSlCtEntry{
		Other: outside, Flags: nat | uint32(bpfgen.TypesSlCtFlagSL_CT_ASSURED|bpfgen.TypesSlCtFlagSL_CT_REPLIED),
		Created: now - uint64(time.Minute), LastSeen: now, Owner: 7, RxPackets: 3, TxBytes: 400,
	})
	put(pintree.MapConntrack, outside, bpfgen.TypesSlCtEntry{Other: inside, Flags: uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE)})
	put(pintree.MapConntrackUnassured, tuple(unix.IPPROTO_UDP, "10.1.0.3:53", "198.51.100.1:53"), bpfgen.TypesSlCtEntry{Created: now, LastSeen: now, Owner: 8})
	put(pintree.MapConntrackUnassured, tuple(unix.IPPROTO_UDP, "[fd00::3]:53", "[2001:db8::1]:53"), bpfgen.TypesSlCtEntry{
		Created: 1, LastSeen: now - uint64(time.Hour), Owner: 8,
	})
	count := func(f FlowFilter) (n int) {
		for _, err := range d.Flows(e.ctx, f) {
			e.ok(err)
			n++
		}
		return n
	}
	for _, tt := range []struct {
		name string
		f    FlowFilter
		want int
	}{
		{"live", FlowFilter{}, 2},
		{"all", FlowFilter{All: true}, 3},
		{"owner", FlowFilter{Owner: 8}, 1},
		{"protocol", FlowFilter{Proto: unix.IPPROTO_TCP}, 1},
		{"pod", FlowFilter{Pod: netip.MustParseAddr("fd00::3"), All: true}, 1},
	} {
		if got := count(tt.f); got != tt.want {
			t.Errorf("%s: %d flows, want %d", tt.name, got, tt.want)
		}
	}
	for f := range d.Flows(e.ctx, FlowFilter{Owner: 7}) {
		if f.Pod.String() != "10.1.0.2:40000" || f.Remote.String() != "198.51.100.1:443" || f.Outside.String() != "192.0.2.10:40000" ||
			f.State != "established" || f.Kind != "masquerade" || !f.PodOpened || f.RxPackets != 3 || f.TxBytes != 400 ||
			f.Age < time.Minute || f.Age > 2*time.Minute {
			t.Errorf("%+v", f)
		}
	}
	for range d.Flows(e.ctx, FlowFilter{All: true}) {
		break // an early end must not be answered
	}
}
