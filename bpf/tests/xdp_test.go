// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
	"github.com/sluice-cni/sluice/pkg/maps/deny"
	"github.com/sluice-cni/sluice/pkg/maps/metrics"
)

const reasonDenied = metrics.Reason(bpfobj.TypesSlDropReasonSL_DROP_DENIED)

// xdp is the object of the deny list: its program is none of tc's, and takes no part in a walk.
var xdp = part{load: bpfobj.LoadXDPUplink, name: "sl_xdp_uplink"}

func xdpProgram(tb testing.TB, o *objects) (*ebpf.CollectionSpec, *ebpf.Program) {
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

func xdpCost(t *testing.T, o *objects, cost map[string]budget) {
	t.Helper()
	spec, p := xdpProgram(t, o)
	cost[xdp.name] = costOf(t, spec.Programs[xdp.name], p)
}

// denied brings a packet from a denied client to the uplink.
func denied(w *walk, family, proto int) {
	_, p := xdpProgram(w.tb, w.objects)
	list := deny.New(w.maps["sl_deny"])
	network := netip.PrefixFrom(client(family), client(family).BitLen())
	if err := list.Add(network); err != nil {
		w.tb.Fatal(err)
	}
	f := w.toHostPort(family, proto, podA).outside.rx("S")
	f.srcMAC, f.dstMAC = upl0.router, upl0.mac
	const drop, pass = 1, 2
	for _, want := range []uint32{drop, pass} {
		got, err := p.Run(&ebpf.RunOptions{Data: f.bytes(w.tb)})
		if err != nil || got != want {
			w.tb.Errorf("verdict %d %v, want %d", got, err, want)
		}
		if want == pass {
			break
		}
		w.drops[reasonDenied]++
		if n, _, err := list.Get(network); err != nil || n != 1 {
			w.tb.Errorf("counted %d %v", n, err)
		}
		if was, err := list.Delete(network); !was || err != nil {
			w.tb.Errorf("%t %v", was, err)
		}
	}
	w.checkCounters(uplIngress)
}
