// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Both directions are limited, by the pod's address and through its hostPort,
// with the whole chain and its masquerade.
func TestPrivilegedPTPBandwidth(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"edt", "tbf"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "edt" {
				require.Qdisc(t, "fq")
			}
			w := e2etest.NewWorld(t)
			n := e2etest.PTPNetwork()
			n.Plugins = []string{"portmap", "firewall", "bandwidth"}
			n.Bandwidth = e2etest.Merge(e2etest.Attributes{"backend": backend}, e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit/5), e2etest.BandwidthLimits("egress", 8*e2etest.Megabit, e2etest.Megabit/5)))
			rt := w.Runtime(n)
			before := w.Warmup(rt, e2etest.TCP(8090, 90))
			p := w.AddPod(rt, "app", e2etest.TCP(8090, 90))
			e2etest.ServeSink(t, p)
			e2etest.ServeSink(t, w.Client())
			e2etest.MustCheck(t, p)
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for name, way := range map[string]struct {
					from e2etest.Place
					to   string
				}{
					"the hostPort":   {w.Client(), e2etest.At(fam.Node(w.Client()), 8090)},
					"from the node":  {w.Node, e2etest.At(fam.Pod(p), 90)},
					"to the outside": {p, e2etest.At(fam.Client(w.Client()), 90)},
				} {
					got, err := e2etest.MeasureRate(way.from, "tcp"+fam.Suffix, way.to)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					} else if got > 10*e2etest.Megabit {
						t.Errorf("%s: %.1f Mbit/s of 8", name, got/e2etest.Megabit)
					}
				}
			})
			p.MustDel()
			w.AssertNothingLeft(before)
		})
	}
}
