// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// callNetfilter is what every Kubernetes node has: rules of the IP layer see what a bridge gets at its ports.
const callNetfilter = "sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"

// moveUplink gives the addresses of a client's uplink, and the default routes if it is the first one, to another device.
func moveUplink(t testing.TB, w *e2etest.World, c *netlab.Client, to string) {
	t.Helper()
	from := c.Uplink.Name
	c.Uplink.Name = to
	// As after a boot: nothing of the address that the old device had is known.
	lines := []string{"ip addr flush dev " + from + " scope global", "ip link set " + to + " up"}
	for _, a := range c.Uplink.Node {
		lines = append(lines, fmt.Sprintf("ip addr add %s dev %s%s", a, to, e2etest.NoDAD(a.Addr().Is6())))
	}
	if c == w.Client() {
		for _, fam := range e2etest.Families() {
			lines = append(lines, fmt.Sprintf("ip -%s route replace default via %s dev %s", fam.Suffix, fam.Client(c), to))
		}
	}
	e2etest.RunScript(t, w, strings.Join(lines, "\n"))
	if err := w.Node.AwaitIPv6(to); err != nil {
		t.Fatal(err)
	}
	e2etest.MustRun(t, c, "ip neigh flush all")
}

// onBridge makes a client's uplink the port of a bridge, which gets its addresses.
func onBridge(t testing.TB, w *e2etest.World, c *netlab.Client, bridge string) {
	t.Helper()
	e2etest.RunScript(t, w, callNetfilter+`
ip link add `+bridge+` address 02:00:00:00:0b:01 type bridge
ip link set `+c.Uplink.Name+` master `+bridge)
	moveUplink(t, w, c, bridge)
}

// statefulRules are firewalls of nodes that ask netfilter's connection table.
var statefulRules = []struct{ name, script string }{
	{"drop invalid", `
for t in iptables ip6tables; do $t -w -A FORWARD -m conntrack --ctstate INVALID -j DROP; done`},
	{"established only", `
nft -f - <<'END'
table inet admin {
	chain forward {
		type filter hook forward priority 0; policy drop
		ct state established,related accept
		ct state new iifname { "cni0", "veth*" } accept
		ct state new meta l4proto { tcp, udp } th dport 80 accept
	}
}
END`},
	{"kube-proxy", `
nft -f - <<'END'
table inet kube-proxy {
	chain filter-prerouting {
		type filter hook prerouting priority dstnat - 10; policy accept
		ct state new counter
	}
	chain filter-forward {
		type filter hook forward priority -110; policy accept
		ct state invalid drop
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept
		ip daddr 10.96.0.10 tcp dport 80 dnat to 192.0.2.77
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept
		meta mark & 0x4000 == 0x4000 masquerade fully-random
	}
}
END`},
}

// suite is the plugins of one project.
type suite struct{ name, dir string }

// suites are upstream, where its plugins can be had, and this project.
func suites(t *testing.T) []suite {
	t.Helper()
	all := []suite{{"sluice", e2etest.Programs.Dir}}
	dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall")
	if err != nil {
		t.Logf("no upstream plugins here: %v", err)
		return all
	}
	return append(all, suite{"upstream", dir})
}

// exchange holds conversations of a client with a pod's hostPort and of a pod with the client, which sees the node's address.
func exchange(t *testing.T, w *e2etest.World, c *netlab.Client, web, app *e2etest.Pod) {
	t.Helper()
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if err := e2etest.Ping(app, fam, fam.Client(c), 7, 1); err != nil {
			t.Errorf("ping: %v", err)
		}
		for _, proto := range []string{"tcp", "udp"} {
			if got, err := talk(app, proto, e2etest.At(fam.Client(c), 9000)); err != nil {
				t.Errorf("out, %s: %v", proto, err)
			} else if got.Server != c.Name || got.Peer.Addr() != fam.Node(c) {
				t.Errorf("out, %s: %s saw %s, want %s", proto, got.Server, got.Peer, fam.Node(c))
			}
			if got, err := talk(c, proto, e2etest.At(fam.Node(c), 8080)); err != nil {
				t.Errorf("hostPort, %s: %v", proto, err)
			} else if got.Server != web.Name || got.Peer.Addr() != fam.Client(c) {
				t.Errorf("hostPort, %s: %s saw %s, want %s", proto, got.Server, got.Peer, fam.Client(c))
			}
		}
	})
}

// talk is e2etest.Ask that returns its error, so that one dead way does not hide the others.
func talk(ns e2etest.Place, proto, addr string) (e2etest.Answer, error) {
	k, err := e2etest.DialWithin(netlab.Patient(2*time.Second), ns, proto, "", addr)
	if err != nil {
		return e2etest.Answer{}, err
	}
	defer k.Close()
	if err := k.SendRounds(e2etest.LongTalk); err != nil {
		return e2etest.Answer{}, err
	}
	return k.Answer, nil
}

// A bridge with a NIC as its port is an uplink as any other, also where netfilter sees packets at the port already: before the
// bridge's program translates them.
func TestPrivilegedBridgeUplink(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	for _, s := range suites(t) {
		for _, rules := range statefulRules {
			t.Run(s.name+"/"+rules.name, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				c := w.Client()
				onBridge(t, w, c, "br-lan")
				rt := w.RuntimeFrom(e2etest.Net0(), s.dir)
				web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				app := w.AddPod(rt, "app")
				e2etest.Serve(t, web, "web", ":80")
				e2etest.Serve(t, c, c.Name, ":9000")
				e2etest.RunScript(t, w, rules.script)
				exchange(t, w, c, web, app)
			})
		}
	}
}
