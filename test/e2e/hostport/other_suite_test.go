// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// A container of another suite uses a hostPort of its node at each of the node's addresses, and a host behind the node. Its bridge is
// there before the pods, or comes later and is taken in by the next look at the node.
func TestPrivilegedHostPortFromOtherSuite(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	dirs := map[string]string{"sluice": e2etest.Programs.Dir}
	if dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall"); err == nil {
		dirs["upstream"] = dir
	} else {
		t.Logf("no upstream plugins here: %v", err)
	}
	for suite, dir := range dirs {
		for _, network := range []e2etest.Network{e2etest.Net0(), e2etest.PTPNetwork()} {
			for i, rules := range e2etest.ContainerRules {
				late := i == 1
				t.Run(fmt.Sprintf("%s/to %s/%s", suite, cmp.Or(network.Main, "bridge"), rules.Name), func(t *testing.T) {
					t.Parallel()
					w := e2etest.NewWorld(t)
					var c e2etest.Place
					if !late {
						c = e2etest.AddContainer(t, w, rules.Script)
					}
					web := w.AddPod(w.RuntimeFrom(network, dir), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
					if late {
						c = e2etest.AddContainer(t, w, rules.Script)
						e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
					}
					e2etest.Serve(t, web, "web", ":80")
					e2etest.Serve(t, w.Client(), "client", ":9000")
					fromContainer(t, w, c)
				})
			}
		}
	}
}

func fromContainer(t *testing.T, w *e2etest.World, c e2etest.Place) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, to := range []struct{ addr, server string }{
			{e2etest.At(fam.Node(w.Client()), 8080), "web"},
			{e2etest.At(e2etest.ContainerGateway(fam), 8080), "web"},
			{e2etest.At(fam.Client(w.Client()), 9000), "client"},
		} {
			if got := e2etest.Ask(t, c, proto, to.addr); got.Server != to.server {
				t.Errorf("%s: answered by %s, want %s", to.addr, got.Server, to.server)
			}
		}
	})
}
