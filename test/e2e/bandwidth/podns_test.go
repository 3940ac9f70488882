// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Both directions are limited, with departure times and with token buckets, in
// a chain with the firewall; DEL leaves nothing in the datapath.
func TestPrivilegedInsideBandwidth(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"edt", "tbf"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "edt" {
				require.Qdisc(t, "fq")
			}
			e2etest.EachPodnsKind(t, func(t *testing.T, k e2etest.PodnsKind) { limited(k, t, backend) })
		})
	}
}

func limited(k e2etest.PodnsKind, t *testing.T, backend string) {
	t.Helper()
	w := k.NewWorld(t)
	n := k.Network("firewall", "bandwidth")
	n.Bandwidth = e2etest.Merge(e2etest.Attributes{"backend": backend}, e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit/5), e2etest.BandwidthLimits("egress", 8*e2etest.Megabit, e2etest.Megabit/5)))
	rt := w.Runtime(n)
	a := w.AddPod(rt, "a")
	e2etest.ServeSink(t, a)
	e2etest.ServeSink(t, w.Client())
	e2etest.AssertChecked(t, a)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for name, way := range map[string]struct {
			from e2etest.Place
			to   netip.Addr
		}{"ingress": {w.Client(), fam.Pod(a)}, "egress": {a, k.ClientAddr(w, fam)}} {
			got, err := e2etest.MeasureRate(way.from, "tcp"+fam.Suffix, e2etest.At(way.to, 90))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got > 10*e2etest.Megabit {
				t.Errorf("%s: %.1f Mbit/s of 8", name, got/e2etest.Megabit)
			}
		}
	})
	e2etest.MustRun(t, a, "tc qdisc del dev eth0 root")
	if a.Check() == nil {
		t.Error("CHECK does not miss the qdisc")
	}
	a.MustDel()
	a.MustDel()
	for _, words := range []string{"endpoints -w", "bandwidth -w"} {
		if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" "+words); strings.Contains(out, "eth0") {
			t.Errorf("left in %s:\n%s", words, out)
		}
	}
}
