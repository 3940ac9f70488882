// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// container is one of another suite, behind that one's bridge.
type container struct{ *netlab.Pod }

// containerRules are how suites masquerade what leaves their bridge. The first is Docker's and libvirt's, the other is that of netavark
// and of Docker with nftables.
var containerRules = []struct{ name, script string }{
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

// addContainer makes the other suite's bridge, as it is without a container, and a container on it.
func addContainer(t testing.TB, w *e2etest.World, rules string) container {
	t.Helper()
	c := container{w.Node.PodT(t, "container")}
	e2etest.RunScript(t, w, `
sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1 net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip addr add fd00:17::1/64 dev docker0 nodad
ip link set docker0 up`+rules)
	e2etest.MustRun(t, w.Node, "ip link add vethc type veth peer name eth0 netns "+c.ProcPath())
	e2etest.RunScript(t, w, "ip link set vethc master docker0 up")
	for _, line := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 172.17.0.2/16 dev eth0", "ip addr add fd00:17::2/64 dev eth0 nodad",
		"ip route add default via 172.17.0.1", "ip -6 route add default via fd00:17::1",
	} {
		e2etest.MustRun(t, c, line)
	}
	if err := w.Node.AwaitIPv6("docker0"); err != nil {
		t.Fatal(err)
	}
	return c
}

// A container of another suite uses a hostPort of its node, at each of the node's addresses, and a host behind the node.
func TestPrivilegedHostPortFromOtherSuite(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	dirs := map[string]string{"sluice": e2etest.Programs.Dir}
	if dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall"); err == nil {
		dirs["upstream"] = dir
	} else {
		t.Logf("no upstream plugins here: %v", err)
	}
	for name, dir := range dirs {
		for _, network := range []e2etest.Network{e2etest.Net0(), e2etest.PTPNetwork()} {
			for _, rules := range containerRules {
				t.Run(strings.Join([]string{name, "to " + map[string]string{"": "bridge", "ptp": "ptp"}[network.Main], rules.name}, "/"), func(t *testing.T) {
					t.Parallel()
					w := e2etest.NewWorld(t)
					c := addContainer(t, w, rules.script)
					web := w.AddPod(w.RuntimeFrom(network, dir), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
					e2etest.Serve(t, web, "web", ":80")
					e2etest.Serve(t, w.Client(), "client", ":9000")
					useHostPort(t, w, c)
				})
			}
		}
	}
}

func useHostPort(t *testing.T, w *e2etest.World, c container) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		gateway := map[string]string{"4": "172.17.0.1:8080", "6": "[fd00:17::1]:8080"}[fam.Suffix]
		for addr, want := range map[string]string{
			e2etest.At(fam.Node(w.Client()), 8080): "web", gateway: "web", e2etest.At(fam.Client(w.Client()), 9000): "client",
		} {
			if err := converse(c, proto, addr, want); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		}
	})
}

// converse holds a long conversation with a server of that name.
func converse(ns e2etest.Place, proto, addr, want string) error {
	k, err := e2etest.DialWithin(e2etest.AnswerTimeout, ns, proto, "", addr)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.SendRounds(e2etest.LongTalk); err != nil {
		return err
	}
	if k.Answer.Server != want {
		return fmt.Errorf("answered by %s, want %s", k.Answer.Server, want)
	}
	return nil
}
