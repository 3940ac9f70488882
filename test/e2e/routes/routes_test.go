// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestPrivilegedHostGW(t *testing.T) {
	t.Parallel()
	inMode(t, routes.ModeHostGW)
}

func TestPrivilegedVXLAN(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	inMode(t, routes.ModeVXLAN)
}

func TestPrivilegedWireGuard(t *testing.T) {
	t.Parallel()
	require.Link(t, "wireguard")
	inMode(t, routes.ModeWireGuard)
}

// inMode sees pods of three nodes talk: with each other, and to hostPorts. Then a node goes.
func inMode(t *testing.T, mode string) {
	c := newCluster(t, "ptp", "bridge", "ptp")
	c.use(mode)
	p := makePods(t, c)
	talkToPods(t, p)
	bigPackets(t, c, p)
	talkToHostPorts(t, c, p, mode)

	gone := c.members[2]
	c.remove(gone)
	if left := gone.leftovers(); left != "" {
		t.Errorf("Remove has left\n%s", left)
	}
	c.sync()
	for _, m := range c.members {
		for _, cidr := range gone.facts.PodCIDRs {
			if left := m.leftovers(); strings.Contains(left, cidr.String()) {
				t.Errorf("%s has a route to the node that went:\n%s", m.facts.Name, left)
			}
		}
	}
	talkToPods(t, p[:2])
}

// The nodes change from each mode to each other one, with the same pods.
func TestPrivilegedModeChanges(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	changeModes(t, routes.ModeHostGW, routes.ModeVXLAN, routes.ModeHostGW)
}

func TestPrivilegedModeChangesWireGuard(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	require.Link(t, "wireguard")
	changeModes(t, routes.ModeWireGuard, routes.ModeVXLAN, routes.ModeWireGuard, routes.ModeHostGW, routes.ModeWireGuard)
}

func changeModes(t *testing.T, modes ...string) {
	c := newCluster(t, "ptp", "bridge")
	c.use(modes[0])
	p := makePods(t, c)
	for _, mode := range modes {
		c.use(mode)
		for _, m := range c.members {
			left := m.leftovers()
			for dev, of := range map[string]string{"flannel.1:": routes.ModeVXLAN, "flannel-v6.1:": routes.ModeVXLAN, "sluice-wg:": routes.ModeWireGuard, "sluice-wg1:": routes.ModeWireGuard} {
				if strings.Contains(left, dev) != (of == mode) {
					t.Errorf("%s: %s has\n%s", mode, m.facts.Name, left)
				}
			}
		}
		talkToPods(t, p)
	}
	c.use(routes.ModeNative)
	for _, m := range c.members {
		if left := m.leftovers(); left != "" {
			t.Errorf("native: %s has\n%s", m.facts.Name, left)
		}
	}
}

// pods are the pods of one node.
type pods struct {
	*member
	pod *e2etest.Pod // with the MTU of the mode
	big *e2etest.Pod // with the uplink's, so that its packets do not fit
}

// makePods makes the pods of each node: a server with hostPort 8080, and one that knows nothing of the mode's MTU.
func makePods(t *testing.T, c *cluster) (all []pods) {
	for _, m := range c.members {
		rt := m.Runtime(m.network(m.router.MTU(1500)))
		wide := m.network(0)
		p := pods{m, m.AddPod(rt, "pod", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), m.AddPod(m.Runtime(wide), "big")}
		e2etest.Serve(t, p.pod, m.facts.Name, ":80")
		e2etest.BulkServer(t, p.pod, ":81")
		all = append(all, p)
	}
	return all
}

// talkToPods has each pod ask the pod of each other node. The server sees the pod's own address.
func talkToPods(t *testing.T, all []pods) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, from := range all {
			for _, to := range all {
				if from.member == to.member {
					continue
				}
				got := e2etest.Ask(t, from.pod, proto+fam.Suffix, e2etest.At(fam.Pod(to.pod), 80))
				if got.Server != to.facts.Name || got.Peer.Addr() != fam.Pod(from.pod) {
					t.Errorf("%s to %s: %s saw %s, want %s", from.facts.Name, to.facts.Name, got.Server, got.Peer, fam.Pod(from.pod))
				}
				// What the node itself sends to a pod is answered too.
				if got := e2etest.Ask(t, from.Node, proto+fam.Suffix, e2etest.At(fam.Pod(to.pod), 80)); got.Server != to.facts.Name {
					t.Errorf("node %s to %s: answered by %s", from.facts.Name, to.facts.Name, got.Server)
				}
			}
		}
	})
}

// bigPackets sends what does not fit into one packet: segments of TCP, fragments of UDP, and full packets of a pod whose MTU is
// too large for the mode, which has to learn it on the way.
func bigPackets(t *testing.T, c *cluster, all []pods) {
	t.Helper()
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		server := fam.Pod(all[1].pod)
		for name, from := range map[string]e2etest.Place{"pod": all[0].pod, "pod with a large MTU": all[0].big} {
			if err := e2etest.BulkClient(from, "tcp"+fam.Suffix, e2etest.At(server, 81)); err != nil {
				t.Errorf("%s, TCP: %v", name, err)
			}
			k, err := e2etest.Dial(from, "udp"+fam.Suffix, "", e2etest.At(server, 80))
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			_ = k.Send(strings.Repeat("x", 1300+150)) // the first packet of this size may tell the pod its path's MTU
			for _, size := range []int{1300, 1450, 4000, 20000} {
				if err := k.Send(strings.Repeat("x", size)); err != nil {
					t.Errorf("%s, UDP, %d bytes: %v", name, size, err)
				}
			}
		}
	})
}

// talkToHostPorts asks for the hostPort of the second node: by its InternalIP and by the address of its tunnel.
func talkToHostPorts(t *testing.T, c *cluster, all []pods, mode string) {
	t.Helper()
	server := all[1]
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		v4 := fam.Suffix == "4"
		ask := func(name string, from e2etest.Place, to netip.Addr, seen netip.Addr) {
			got := e2etest.Ask(t, from, proto+fam.Suffix, e2etest.At(to, 8080))
			if got.Server != server.facts.Name || got.Peer.Addr() != seen {
				t.Errorf("%s to %s: %s saw %s, want %s", name, to, got.Server, got.Peer, seen)
			}
		}
		address := func(m *member) netip.Addr {
			if v4 {
				return m.facts.InternalIPs[0]
			}
			return m.facts.InternalIPs[1]
		}
		node := address(server.member)
		outside := netlab.IP4(netlab.ClusterSwitch())
		if !v4 {
			outside = netlab.IP6(netlab.ClusterSwitch())
		}
		ask("outside", c.lab.Switch, node, outside)
		ask("another node", all[0].Node, node, address(all[0].member))
		ask("a pod of another node", all[0].pod, node, address(all[0].member)) // masqueraded: the node's address is no pod's
		ask("a pod of this node", server.pod, node, gatewayOf(server, fam))
		if mode != routes.ModeHostGW {
			tunnel := server.facts.PodCIDRs[0].Addr()
			if !v4 {
				tunnel = server.facts.PodCIDRs[1].Addr()
			}
			before := server.Counters(t, server.pod)
			ask("a pod, by the tunnel's address", all[0].pod, tunnel, fam.Pod(all[0].pod))
			// VXLAN devices have an Ethernet header, so they are on the fast path. WireGuard's are L3 uplinks.
			after := server.Counters(t, server.pod)
			if fast := after.RxFast - before.RxFast; (fast > 0) != (mode == routes.ModeVXLAN) || after.RxPackets == before.RxPackets {
				t.Errorf("%s: %d packets, %d on the fast path", mode, after.RxPackets-before.RxPackets, fast)
			}
		}
	})
}

// gatewayOf is the source that a pod sees of its own requests (hairpin).
func gatewayOf(p pods, fam e2etest.Family) netip.Addr {
	for _, cidr := range p.facts.PodCIDRs {
		if cidr.Addr().Is4() == (fam.Suffix == "4") {
			return cidr.Addr().Next()
		}
	}
	return netip.Addr{}
}
