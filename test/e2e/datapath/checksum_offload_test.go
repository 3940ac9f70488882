// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A veth carries packets with half-made checksums that no receiver verifies.
// With offload off, senders or the uplink make whole ones, and receivers check
// them: a wrong update of either kind loses every packet.
func TestPrivilegedChecksums(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		off  func(w *e2etest.World, pods ...*e2etest.Pod) error
	}{
		{"made by the senders", func(w *e2etest.World, pods ...*e2etest.Pod) error {
			for _, p := range pods {
				if err := p.Do(func() error { return netlab.WithoutTxChecksums("eth0") }); err != nil {
					return err
				}
			}
			return w.Client().Do(func() error { return netlab.WithoutTxChecksums("eth0") })
		}},
		{"made by the uplink", func(w *e2etest.World, _ ...*e2etest.Pod) error {
			return w.Node.Do(func() error { return netlab.WithoutTxChecksums("eth0") })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			if err := tt.off(w, web, app); err != nil {
				t.Fatal(err)
			}
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
				e2etest.Ask(t, app, proto, e2etest.At(fam.Client(w.Client()), 9000))
				e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(web), 80))
				e2etest.Ask(t, app, proto, e2etest.At(fam.Pod(web), 80))
				e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(web), 80))
			})
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				if err := e2etest.Ping(app, fam, fam.Client(w.Client()), 7, 1); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
