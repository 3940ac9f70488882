// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

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
		if err := refused(app, fam, e2etest.At(fam.Client(c), 9999)); err != nil {
			t.Errorf("a port that nobody serves: %v", err)
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

// refused asks for a port that nobody serves: the ICMP error about the datagram must come to the pod.
func refused(ns e2etest.Place, fam e2etest.Family, addr string) error {
	_, err := e2etest.DialWithin(netlab.Patient(2*time.Second), ns, "udp"+fam.Suffix, "", addr)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return fmt.Errorf("%w, want %w", err, unix.ECONNREFUSED)
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
				e2etest.BridgeUplink(t, w, c, "br-lan")
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

// statefulFirewall is the strictest of statefulRules: what it does not know opens nothing from outside.
func statefulFirewall() string { return statefulRules[1].script }

// bridgeShapes are the ways in which a bridge and the node's NIC are put together. Each makes a device that has the node's addresses
// toward the first client, before the first pod comes.
var bridgeShapes = []struct {
	name  string
	links []string // kinds of devices that it needs
	build func(t testing.TB, w *e2etest.World, c *netlab.Client)
	later string // runs on the node when the pods are there
}{
	{"without br_netfilter", nil, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		e2etest.BridgeUplink(t, w, c, "br-lan")
		e2etest.RunScript(t, w, "sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0")
	}, ""},
	{"port that comes later", nil, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		nic := c.Uplink.Name
		e2etest.BridgeUplink(t, w, c, "br-lan")
		e2etest.RunScript(t, w, "ip link set "+nic+" nomaster")
	}, "ip link set eth0 master br-lan"},
	{"macvlan on the bridge", []string{"macvlan"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`
ip link add br-lan type bridge
ip link set eth0 master br-lan
ip link set br-lan up
ip link add mv0 link br-lan type macvlan mode bridge`)
		e2etest.MoveUplink(t, w, c, "mv0")
	}, ""},
	{"macvlan as the port", []string{"macvlan"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`
ip link add mv0 link eth0 type macvlan mode passthru
ip link set mv0 up
ip link add br-lan type bridge
ip link set mv0 master br-lan`)
		e2etest.MoveUplink(t, w, c, "br-lan")
	}, ""},
	{"bond as the port", []string{"bond"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`
ip link add bond0 type bond mode active-backup miimon 100
ip link set eth0 down
ip link set eth0 master bond0
ip link set bond0 up
ip link add br-lan address 02:00:00:00:0b:01 type bridge
ip link set bond0 master br-lan`)
		e2etest.MoveUplink(t, w, c, "br-lan")
	}, ""},
	{"VLAN on the bridge", []string{"vlan"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		tagClient(t, c)
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`sysctl -qw net.bridge.bridge-nf-filter-vlan-tagged=1
ip link add br-lan type bridge
ip link set eth0 master br-lan
ip link set br-lan up
ip link add br-lan.10 link br-lan type vlan id 10`)
		e2etest.MoveUplink(t, w, c, "br-lan.10")
	}, ""},
	{"VLAN filtering", []string{"vlan"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`sysctl -qw net.bridge.bridge-nf-filter-vlan-tagged=1
ip link add br-lan type bridge vlan_filtering 1
ip link set eth0 master br-lan
bridge vlan add dev eth0 vid 10 pvid untagged
bridge vlan add dev br-lan vid 10 self
ip link set br-lan up
ip link add br-lan.10 link br-lan type vlan id 10`)
		e2etest.MoveUplink(t, w, c, "br-lan.10")
	}, ""},
	{"bridge on a VLAN", []string{"vlan"}, func(t testing.TB, w *e2etest.World, c *netlab.Client) {
		tagClient(t, c)
		e2etest.RunScript(t, w, e2etest.BridgesCallNetfilter+`
ip link add eth0.10 link eth0 type vlan id 10
ip link set eth0.10 up
ip link add br-lan type bridge
ip link set eth0.10 master br-lan`)
		e2etest.MoveUplink(t, w, c, "br-lan")
	}, ""},
}

// tagClient moves a client's addresses to VLAN 10.
func tagClient(t testing.TB, c *netlab.Client) {
	t.Helper()
	lines := []string{"ip link add eth0.10 link eth0 type vlan id 10", "ip addr flush dev eth0 scope global", "ip link set eth0.10 up"}
	for _, a := range c.Uplink.Client {
		lines = append(lines, fmt.Sprintf("ip addr add %s dev eth0.10%s", a, e2etest.NoDAD(a.Addr().Is6())))
	}
	for _, fam := range e2etest.Families() {
		lines = append(lines, fmt.Sprintf("ip -%s route replace default via %s dev eth0.10", fam.Suffix, fam.Node(c)))
	}
	for _, line := range lines {
		e2etest.MustRun(t, c, line)
	}
}

// What is below the bridge, or on it, makes no difference; nor does the number of uplinks.
func TestPrivilegedBridgeUplinkShapes(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	for _, shape := range bridgeShapes {
		for _, s := range suites(t) {
			t.Run(shape.name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				for _, kind := range shape.links {
					require.Link(t, kind)
				}
				w := e2etest.NewWorld(t, e2etest.TwoUplinks())
				shape.build(t, w, w.Client())
				rt := w.RuntimeFrom(e2etest.Net0(), s.dir)
				web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				app := w.AddPod(rt, "app")
				e2etest.Serve(t, web, "web", ":80")
				e2etest.RunScript(t, w, shape.later+statefulFirewall())
				for _, c := range w.Clients {
					e2etest.Serve(t, c, c.Name, ":9000")
					exchange(t, w, c, web, app)
				}
			})
		}
	}
}

// Long segments get through a bridge in both directions, and datagrams in fragments through a hostPort, on the slow path and beside it.
// docs/known-gaps.md has what becomes of answers in fragments.
func TestPrivilegedBridgeUplinkLong(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	for _, conf := range []string{`{}`, `{"fastPath":"off"}`} {
		for _, s := range suites(t) {
			t.Run(s.name+"/"+conf, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Configure(conf)
				c := w.Client()
				e2etest.BridgeUplink(t, w, c, "br-lan")
				rt := w.RuntimeFrom(e2etest.Net0(), s.dir)
				web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.TCP(8081, 81), e2etest.UDP(8080, 80))
				app := w.AddPod(rt, "app")
				e2etest.Serve(t, web, "web", ":80")
				e2etest.BulkServer(t, web, ":81")
				e2etest.BulkServer(t, c, ":9001")
				e2etest.RunScript(t, w, strings.ReplaceAll(statefulFirewall(), "dport 80 ", "dport { 80, 81 } "))
				e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
					if err := e2etest.BulkClient(c, "tcp"+fam.Suffix, e2etest.At(fam.Node(c), 8081)); err != nil {
						t.Errorf("hostPort: %v", err)
					}
					if err := e2etest.BulkClient(app, "tcp"+fam.Suffix, e2etest.At(fam.Client(c), 9001)); err != nil {
						t.Errorf("out: %v", err)
					}
					if err := longDatagrams(c, e2etest.At(fam.Node(c), 8080)); err != nil {
						t.Errorf("hostPort, in fragments: %v", err)
					}
				})
			})
		}
	}
}

// A pod with netfilter rules of its own, as sidecars of service meshes have, gets no packet with what the node's netfilter has noted at
// the bridge's port.
func TestPrivilegedBridgeUplinkSidecar(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	for _, s := range suites(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			c := w.Client()
			e2etest.BridgeUplink(t, w, c, "br-lan")
			rt := w.RuntimeFrom(e2etest.Net0(), s.dir)
			web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			app := w.AddPod(rt, "app")
			for _, p := range []*e2etest.Pod{web, app} {
				e2etest.LoadNFT(t, p, `table inet sidecar {
	chain prerouting {
		type nat hook prerouting priority dstnat
		meta l4proto { tcp, udp } th dport 80 redirect to :8000
	}
	chain input {
		type filter hook input priority filter; policy drop
		meta l4proto { icmp, ipv6-icmp } accept
		ct state established,related accept
		ct state new meta l4proto { tcp, udp } th dport 8000 accept
	}
}
`)
			}
			e2etest.Serve(t, web, "web", ":8000")
			e2etest.Serve(t, c, c.Name, ":9000")
			e2etest.RunScript(t, w, statefulFirewall())
			exchange(t, w, c, web, app)
		})
	}
}

// longDatagrams sends datagrams in fragments, and wants them back in fragments.
func longDatagrams(from e2etest.Place, to string) error {
	k, err := e2etest.Dial(from, "udp", "", to)
	if err != nil {
		return err
	}
	defer k.Close()
	for i := range 5 {
		if err := k.Send(strings.Repeat(string(rune('a'+i)), 4000)); err != nil {
			return fmt.Errorf("datagram %d: %w", i+1, errors.Unwrap(err)) // not its 4,000 bytes
		}
	}
	return nil
}
