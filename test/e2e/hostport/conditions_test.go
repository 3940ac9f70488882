// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// What does not meet the conditions reaches the node itself, as without a hostPort.
func TestPrivilegedConditions(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	n := e2etest.Net0()
	n.Portmap = e2etest.Attributes{
		"conditionsV4": []string{"!", "-s", netlab.IP4(second.Uplink.Client).String()},
		"conditionsV6": []string{"-i", first.Uplink.Name},
	}
	web := w.AddPod(w.Runtime(n), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Node, "node", ":8080")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, x := range []struct {
			from *netlab.Client
			want string
		}{{first, "web"}, {second, "node"}} {
			if got := e2etest.Ask(t, x.from, proto, e2etest.At(fam.Node(x.from), 8080)); got.Server != x.want {
				t.Errorf("%s: answered by %s, want %s", x.from.Name, got.Server, x.want)
			}
		}
	})
	if err := web.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

// Of two mappings for one port in one request the first counts, as with upstream.
func TestPrivilegedSamePortTwice(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	four := e2etest.TCP(8080, 81)
	four.HostIP = "0.0.0.0"
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), four)
	for port := 80; port <= 81; port++ {
		e2etest.Serve(t, web, fmt.Sprint("port", port), fmt.Sprint(":", port))
	}
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "port80" {
			t.Errorf("answered by %s, want port80", got.Server)
		}
	})
	web.MustDel()
}
