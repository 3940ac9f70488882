// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// bigSegment is longer than a segment without BIG TCP.
const bigSegment = 66000

// A length above 64 KiB does not fit into the header of IPv4, and is 0 there. The programs translate and redirect such segments whole:
// from a pod to another, out of a pod and into it. A stream of IPv6 passes as without the key.
func TestPrivilegedBigTCP(t *testing.T) {
	require.BigTCP(t)
	t.Parallel()
	for name, n := range map[string]e2etest.Network{"bridge": e2etest.Net0(), "ptp": e2etest.PTPNetwork()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			n.Extra = e2etest.Attributes{"bigTCP": true}
			rt := w.Runtime(n)
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
			e2etest.BulkServer(t, web, ":80")
			if err := w.SetMaxSegmentIPv4(rtnl.BigSegment); err != nil { // as an administrator would
				t.Fatal(err)
			}
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					name string
					from e2etest.Place
					ends map[string]interface{ Do(func() error) error }
					to   string
				}{
					{"by the uplink", w.Client(), map[string]interface{ Do(func() error) error }{"the pod": web, "the client": w.Client()}, e2etest.At(fam.Node(w.Client()), 8080)},
					{"between pods", app, map[string]interface{ Do(func() error) error }{"the pod": web, "the other pod": app}, e2etest.At(fam.Pod(web), 80)},
				} {
					before := w.Counters(t, web)
					stop := make(map[string]func() float64)
					for name, at := range x.ends {
						stop[name] = watchSegments(t, at, bigSegment)
					}
					if err := e2etest.BulkClient(x.from, "tcp"+fam.Suffix, x.to); err != nil {
						t.Errorf("%s: %v", x.name, err)
					}
					for name, f := range stop {
						share := f()
						t.Logf("%s, toward %s: %.0f %% of the bytes came in segments above 64 KiB", x.name, name, 100*share)
						if is6 := fam.Suffix == "6"; (share > 0) == is6 {
							t.Errorf("%s, toward %s: %.0f %% of the bytes in segments above 64 KiB", x.name, name, 100*share)
						}
					}
					after := w.Counters(t, web)
					t.Logf("%s: of %d packets of the pod %d took the fast path", x.name, after.TxPackets-before.TxPackets, after.TxFast-before.TxFast)
					if after.TxFast < before.TxFast+10 {
						t.Errorf("%s: %d of the pod's packets took the fast path", x.name, after.TxFast-before.TxFast)
					}
				}
			})
		})
	}
}
