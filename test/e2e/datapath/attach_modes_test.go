// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Both ways of attaching carry the same traffic, survive CHECK, and leave
// nothing.
func TestPrivilegedAttachModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == "tcx" {
				require.TCX(t)
			}
			w := e2etest.NewWorld(t)
			w.Configure(fmt.Sprintf(`{"attach": %q}`, mode))
			rt := w.Runtime(e2etest.Net0())
			before := w.Warmup(rt, e2etest.TCP(8080, 80))
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			if n := len(w.Snapshot().Grep("tcx " + web.HostVeth())); (n > 0) != (mode == "tcx") {
				t.Errorf("%d tcx programs on the pod's device", n)
			}
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				before := w.Counters(t, web)
				if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Peer.Addr() != fam.Client(w.Client()) {
					t.Errorf("web saw %s", got.Peer)
				}
				if got := e2etest.Ask(t, app, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
					t.Errorf("the client saw %s", got.Peer)
				}
				if after := w.Counters(t, web); after.RxFast == before.RxFast {
					t.Error("nothing was short-cut")
				}
			})
			for _, p := range []*e2etest.Pod{web, app} {
				if err := p.Check(); err != nil {
					t.Errorf("CHECK %s: %v", p.Name, err)
				}
				p.MustDel()
			}
			w.AssertNothingLeft(before)
		})
	}
}
