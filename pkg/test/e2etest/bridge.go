// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// BridgesCallNetfilter is what Kubernetes asks of each node: rules of the IP layer see what a bridge gets at its ports.
const BridgesCallNetfilter = "sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1\n"

// MoveUplink gives the addresses of a client's uplink, and the default routes by the first one, to another device.
func MoveUplink(t testing.TB, w *World, c *netlab.Client, to string) {
	t.Helper()
	lines := []string{"ip addr flush dev " + c.Uplink.Name + " scope global", "ip link set " + to + " up"}
	c.Uplink.Name = to
	for _, a := range c.Uplink.Node {
		lines = append(lines, fmt.Sprintf("ip addr add %s dev %s%s", a, to, NoDAD(a.Addr().Is6())))
	}
	if c == w.Client() {
		for _, fam := range Families() {
			lines = append(lines, fmt.Sprintf("ip -%s route replace default via %s dev %s", fam.Suffix, fam.Client(c), to))
		}
	}
	RunScript(t, w, strings.Join(lines, "\n"))
	if err := w.Node.AwaitIPv6(to); err != nil {
		t.Fatal(err)
	}
	MustRun(t, c, "ip neigh flush all") // the node had another hardware address
}

// BridgeUplink makes a client's uplink the port of a bridge that gets its addresses and has another hardware address. br_netfilter is on.
func BridgeUplink(t testing.TB, w *World, c *netlab.Client, bridge string) {
	t.Helper()
	RunScript(t, w, BridgesCallNetfilter+`
ip link add `+bridge+` address 02:00:00:00:0b:01 type bridge
ip link set `+c.Uplink.Name+` master `+bridge)
	MoveUplink(t, w, c, bridge)
}

// ContainerRules are how suites other than CNI masquerade what leaves their bridge, docker0, and guard it. The first is how Docker and
// libvirt do it, the second how netavark does, and Docker with nftables.
var ContainerRules = []struct{ Name, Script string }{
	{"iptables", `
iptables -w -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
ip6tables -w -t nat -A POSTROUTING -s fd00:17::/64 ! -o docker0 -j MASQUERADE
for t in iptables ip6tables; do
	$t -w -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	$t -w -A FORWARD -o docker0 -j DROP
	$t -w -A FORWARD -i docker0 -j ACCEPT
done`},
	{"nftables", `
nft -f - <<'END'
table inet netavark {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept
		ip saddr 172.17.0.0/16 ip daddr != 172.17.0.0/16 ip daddr != 224.0.0.0/4 masquerade
		ip6 saddr fd00:17::/64 ip6 daddr != fd00:17::/64 ip6 daddr != ff00::/8 masquerade
	}
	chain forward {
		type filter hook forward priority filter; policy accept
		ct state invalid drop
		oifname "docker0" ct state established,related accept
		oifname "docker0" drop
	}
}
END`},
}

// ContainerGateway is the address of docker0.
func ContainerGateway(fam Family) netip.Addr {
	return netip.MustParseAddr(map[string]string{"4": "172.17.0.1", "6": "fd00:17::1"}[fam.Suffix])
}

// AddContainer makes the bridge of another suite, docker0, and a container on it. rules is one of ContainerRules.
func AddContainer(t testing.TB, w *World, rules string) *netlab.Pod {
	t.Helper()
	c := w.Node.PodT(t, "container")
	RunScript(t, w, BridgesCallNetfilter+`
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip addr add fd00:17::1/64 dev docker0 nodad
ip link add vethc type veth peer name eth0 netns `+c.ProcPath()+`
ip link set vethc master docker0 up
ip link set docker0 up`+rules)
	for _, line := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 172.17.0.2/16 dev eth0", "ip addr add fd00:17::2/64 dev eth0 nodad",
		"ip route add default via 172.17.0.1", "ip -6 route add default via fd00:17::1",
	} {
		MustRun(t, c, line)
	}
	if err := w.Node.AwaitIPv6("docker0"); err != nil {
		t.Fatal(err)
	}
	return c
}
