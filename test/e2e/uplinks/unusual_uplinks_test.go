// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// single takes the networks off an uplink, and with them all of its routes in the main table: clouds give out single addresses, and who
// routes by several providers has a table for each.
func single(t testing.TB, w *e2etest.World, c *netlab.Client, addrs bool) {
	t.Helper()
	dev := c.Uplink.Name
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s addr flush dev %s scope global", fam.Suffix, dev))
		if addrs {
			a := fam.Node(c)
			e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev %s%s", a, a.BitLen(), dev, e2etest.NoDAD(a.Is6())))
		}
	}
}

// byTable routes by c what is for the addresses behind the clients, and for c itself, in a table of its own.
func byTable(t testing.TB, w *e2etest.World, c *netlab.Client) {
	t.Helper()
	for _, fam := range e2etest.Families() {
		for _, to := range []string{elsewhere(fam).String(), fam.Client(c).String()} {
			e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s rule add to %s table 100", fam.Suffix, to))
		}
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s route add %s dev %s table 100", fam.Suffix, fam.Client(c), c.Uplink.Name))
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s route add default via %s dev %s table 100 onlink", fam.Suffix, fam.Client(c), c.Uplink.Name))
	}
}

// A device that only another table than the main one knows leads out of the node as well.
func TestPrivilegedUplinkOfAnotherTable(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	second := w.Clients[1]
	single(t, w, second, true)
	byTable(t, w, second)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	serveElsewhere(w, 9000)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for range 3 {
			got := e2etest.Ask(t, web, proto, e2etest.At(elsewhere(fam), 9000))
			if got.Server != second.Name || got.Peer.Addr() != fam.Node(second) {
				t.Errorf("answered by %s, which saw %s; want %s, %s", got.Server, got.Peer, second.Name, fam.Node(second))
			}
		}
		if got := e2etest.Ask(t, second, proto, e2etest.At(fam.Node(second), 8080)); got.Server != "web" || got.Peer.Addr() != fam.Client(second) {
			t.Errorf("hostPort: answered by %s, which saw %s", got.Server, got.Peer)
		}
	})
}

// Nor does it need an address: what leaves by it has one of another device.
func TestPrivilegedUplinkWithoutAddress(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	single(t, w, second, false)
	byTable(t, w, second)
	mac := strings.TrimSpace(e2etest.MustRun(t, w.Node, "cat /sys/class/net/"+second.Uplink.Name+"/address"))
	for _, fam := range e2etest.Families() {
		a := fam.Node(first)
		e2etest.MustRun(t, second, fmt.Sprintf("ip -%s route replace %s/%d dev eth0", fam.Suffix, a, a.BitLen()))
		e2etest.MustRun(t, second, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0 nud permanent", a, mac))
	}
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	serveElsewhere(w, 9000)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, app, proto, e2etest.At(elsewhere(fam), 9000))
		if got.Server != second.Name || got.Peer.Addr() != fam.Node(first) {
			t.Errorf("answered by %s, which saw %s; want %s, %s", got.Server, got.Peer, second.Name, fam.Node(first))
		}
	})
}

// A mesh gives each node a single address, and each other node a host route.
func TestPrivilegedUplinkOfHostRoutes(t *testing.T) {
	t.Parallel()
	require.Link(t, "tun")
	w := e2etest.NewWorld(t)
	tunnel(t, w)
	for _, line := range []string{
		"ip addr flush dev tun0 scope global", "ip addr add 10.77.0.1/32 dev tun0", "ip addr add fd00:77::1/128 dev tun0 nodad",
		"ip route add 10.77.0.2 dev tun0", "ip -6 route add fd00:77::2 dev tun0",
	} {
		e2etest.MustRun(t, w.Node, line)
	}
	anotherUplink(t, w)
}
