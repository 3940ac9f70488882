// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

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
			w := newWorld(t)
			writeConfig(t, w.Node, fmt.Sprintf(`{"attach": %q}`, mode))
			rt := w.runtime(net0())
			before := w.settled(rt, tcp(8080, 80))
			web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
			serve(t, web, "web", ":80")
			serve(t, w.Client(), "client", ":9000")
			if n := len(w.snapshot().Grep("tcx " + web.hostEnd())); (n > 0) != (mode == "tcx") {
				t.Errorf("%d tcx programs on the pod's device", n)
			}
			eachTransport(t, func(t *testing.T, fam family, proto string) {
				before := w.counters(t, web)
				if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.peer.Addr() != fam.client(w.Client()) {
					t.Errorf("web saw %s", got.peer)
				}
				if got := ask(t, app, proto, at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.node(w.Client()) {
					t.Errorf("the client saw %s", got.peer)
				}
				if after := w.counters(t, web); after.RxFast == before.RxFast {
					t.Error("nothing was short-cut")
				}
			})
			for _, p := range []*pod{web, app} {
				if err := p.check(); err != nil {
					t.Errorf("CHECK %s: %v", p.Name, err)
				}
				p.mustDel()
			}
			w.assertNothingLeft(before)
		})
	}
}
