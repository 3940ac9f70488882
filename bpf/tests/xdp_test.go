// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
	"github.com/sluice-cni/sluice/pkg/maps/denylist"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

const reasonDenied = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_DENIED)

// xdp is the object of the denylist: its program is none of tc's, and takes no part in a walk.
var xdp = part{load: objects.LoadXDPDenylist, name: "sl_xdp_denylist"}

// Verdicts of XDP.
const xdpDrop, xdpPass = 1, 2

func xdpProgram(tb testing.TB, o *programSet) (*ebpf.CollectionSpec, *ebpf.Program) {
	tb.Helper()
	spec, err := xdp.load()
	if err != nil {
		tb.Fatal(err)
	}
	o.load(tb, spec, loadOptions{})
	return spec, o.take(tb, spec, xdp.name)
}

func TestPrivilegedLoadXDP(t *testing.T) {
	_, p := xdpProgram(t, mustLoad(t, loadOptions{}))
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, _ := info.VerifiedInstructions()
	t.Logf("%s: %d instructions verified", info.Name, n)
}

func xdpCost(t *testing.T, o *programSet, cost map[string]budget) {
	t.Helper()
	spec, p := xdpProgram(t, o)
	cost[xdp.name] = costOf(t, spec.Programs[xdp.name], p)
}

// denied brings a packet from a denied client to the uplink.
func denied(w *walk, family, proto int) {
	_, p := xdpProgram(w.tb, w.programSet)
	list := denylist.New(w.views["sl_denylist"])
	network := netip.PrefixFrom(client(family), client(family).BitLen())
	if err := list.Add(network); err != nil {
		w.tb.Fatal(err)
	}
	f := w.toHostPort(family, proto, podA).outside.rx("S")
	f.srcMAC, f.dstMAC = upl0.router, upl0.mac
	for _, want := range []uint32{xdpDrop, xdpPass} {
		got, err := p.Run(&ebpf.RunOptions{Data: f.bytes(w.tb)})
		if err != nil || got != want {
			w.tb.Errorf("verdict %d %v, want %d", got, err, want)
		}
		if want == xdpPass {
			break
		}
		w.drops[reasonDenied].ToPods++
		w.places[drops.Place{Device: 1, Reason: reasonDenied}]++ // what BPF_PROG_TEST_RUN says is lo
		if n, _, err := list.Get(network); err != nil || n != 1 {
			w.tb.Errorf("counted %d %v", n, err)
		}
		if was, err := list.Delete(network); !was || err != nil {
			w.tb.Errorf("%t %v", was, err)
		}
	}
	w.checkCounters(uplIngress)
}

// Drops of a kind that come after one another are counted on the CPU, and all are seen whatever comes between them.
func TestPrivilegedDropRuns(t *testing.T) {
	o := mustLoad(t, loadOptions{})
	_, p := xdpProgram(t, o)
	for _, family := range families {
		if err := denylist.New(o.views["sl_denylist"]).Add(netip.PrefixFrom(client(family), client(family).BitLen())); err != nil {
			t.Fatal(err)
		}
	}
	const loopback = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_LOOPBACK)
	counters, want := drops.NewDeviceDrops(o.views["sl_drops_by_dev"], o.views["sl_event_state"]), map[drops.Reason]uint64{}
	for i, step := range []struct {
		family int
		source netip.Addr
		reason drops.Reason
		times  uint32
	}{
		{4, client4, reasonDenied, 3}, {4, netip.MustParseAddr("127.0.0.9"), loopback, 2}, {6, client6, reasonDenied, 1},
		{4, client4, reasonDenied, 70}, {6, netip.IPv6Loopback(), loopback, 1},
	} {
		f := udpFrame(netip.AddrPortFrom(step.source, 9).String(), netip.AddrPortFrom(podA.addr(step.family), 9).String())
		if got, err := p.Run(&ebpf.RunOptions{Data: f.bytes(t), Repeat: step.times}); err != nil || got != xdpDrop {
			t.Fatalf("step %d: verdict %d, %v", i, got, err)
		}
		want[step.reason] += uint64(step.times)
		all, err := counters.All()
		if err != nil {
			t.Fatal(err)
		}
		got := map[drops.Reason]uint64{}
		for place, n := range all {
			got[place.Reason] += n
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

// A network of IPv6 has none of the IPv4 addresses, though all of them are written as ::ffff:a.b.c.d in the map.
func TestPrivilegedDenyFamilies(t *testing.T) {
	fx := newFixture(t, nil)
	_, p := xdpProgram(t, fx.programSet)
	tests := []struct {
		network  string
		v4, v6   uint32
		hidden   string // in the list too
		toHidden uint64
	}{
		{network: "::/0", v4: xdpPass, v6: xdpDrop},
		{network: "::/8", v4: xdpPass, v6: xdpPass},
		{network: "::/80", v4: xdpPass, v6: xdpPass},
		{network: "0.0.0.0/0", v4: xdpDrop, v6: xdpPass},
		{network: "::/0", v4: xdpDrop, v6: xdpDrop, hidden: "0.0.0.0/0", toHidden: 1},
	}
	for _, tt := range tests {
		fx.each(t, tt.network+tt.hidden, func(w *walk) {
			list := denylist.New(w.views["sl_denylist"])
			for _, n := range []string{tt.network, tt.hidden} {
				if n == "" {
					continue
				}
				network := netip.MustParsePrefix(n)
				if err := list.Add(network); err != nil {
					t.Fatal(err)
				}
				defer list.Delete(network)
			}
			for _, family := range families {
				f := w.toHostPort(family, tcp, podA).outside.rx("S")
				f.srcMAC, f.dstMAC = upl0.router, upl0.mac
				want := pick(family, tt.v4, tt.v6)
				if got, err := p.Run(&ebpf.RunOptions{Data: f.bytes(t)}); err != nil || got != want {
					t.Errorf("IPv%d: verdict %d %v, want %d", family, got, err, want)
				}
				if want == xdpDrop {
					w.drops[reasonDenied].ToPods++
					w.places[drops.Place{Device: 1, Reason: reasonDenied}]++
				}
			}
			if tt.hidden != "" {
				if n, _, err := list.Get(netip.MustParsePrefix(tt.hidden)); err != nil || n != tt.toHidden {
					t.Errorf("counted %d %v", n, err)
				}
			}
		})
	}
}
