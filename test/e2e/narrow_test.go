// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// single takes the networks off an uplink, and with them all of its routes in the main table: clouds give out single addresses, and who
// routes by several providers has a table for each.
func single(t testing.TB, w *world, c *netlab.Client, addrs bool) {
	t.Helper()
	dev := c.Uplink.Name
	for _, fam := range families() {
		sh(t, w.Node, fmt.Sprintf("ip -%s addr flush dev %s scope global", fam.suffix, dev))
		if addrs {
			a := fam.node(c)
			sh(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev %s%s", a, a.BitLen(), dev, nodad(a.Is6())))
		}
	}
}

// byTable routes by c what is for the addresses behind the clients, and for c itself, in a table of its own.
func byTable(t testing.TB, w *world, c *netlab.Client) {
	t.Helper()
	for _, fam := range families() {
		for _, to := range []string{elsewhere(fam).String(), fam.client(c).String()} {
			sh(t, w.Node, fmt.Sprintf("ip -%s rule add to %s table 100", fam.suffix, to))
		}
		sh(t, w.Node, fmt.Sprintf("ip -%s route add %s dev %s table 100", fam.suffix, fam.client(c), c.Uplink.Name))
		sh(t, w.Node, fmt.Sprintf("ip -%s route add default via %s dev %s table 100 onlink", fam.suffix, fam.client(c), c.Uplink.Name))
	}
}

// A device that only another table than the main one knows leads out of the node as well.
func TestPrivilegedUplinkOfAnotherTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	second := w.Clients[1]
	single(t, w, second, true)
	byTable(t, w, second)
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	w.serveElsewhere(9000)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for range 3 {
			got := ask(t, web, proto, at(elsewhere(fam), 9000))
			if got.name != second.Name || got.peer.Addr() != fam.node(second) {
				t.Errorf("answered by %s, which saw %s; want %s, %s", got.name, got.peer, second.Name, fam.node(second))
			}
		}
		if got := ask(t, second, proto, at(fam.node(second), 8080)); got.name != "web" || got.peer.Addr() != fam.client(second) {
			t.Errorf("hostPort: answered by %s, which saw %s", got.name, got.peer)
		}
	})
}

// Nor does it need an address: what leaves by it has one of another device.
func TestPrivilegedUplinkWithoutAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	single(t, w, second, false)
	byTable(t, w, second)
	mac := strings.TrimSpace(sh(t, w.Node, "cat /sys/class/net/"+second.Uplink.Name+"/address"))
	for _, fam := range families() {
		a := fam.node(first)
		sh(t, second, fmt.Sprintf("ip -%s route replace %s/%d dev eth0", fam.suffix, a, a.BitLen()))
		sh(t, second, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0 nud permanent", a, mac))
	}
	app := w.add(w.runtime(net0()), "app")
	w.serveElsewhere(9000)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, app, proto, at(elsewhere(fam), 9000))
		if got.name != second.Name || got.peer.Addr() != fam.node(first) {
			t.Errorf("answered by %s, which saw %s; want %s, %s", got.name, got.peer, second.Name, fam.node(first))
		}
	})
}

// A mesh gives each node a single address, and each other node a host route.
func TestPrivilegedUplinkOfHostRoutes(t *testing.T) {
	t.Parallel()
	require.Link(t, "tun")
	w := newWorld(t)
	tunnel(t, w)
	for _, line := range []string{
		"ip addr flush dev tun0 scope global", "ip addr add 10.77.0.1/32 dev tun0", "ip addr add fd00:77::1/128 dev tun0 nodad",
		"ip route add 10.77.0.2 dev tun0", "ip -6 route add fd00:77::2 dev tun0",
	} {
		sh(t, w.Node, line)
	}
	anotherUplink(t, w)
}
