// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// rig is a node with the router of a mode.
type rig struct {
	t    *testing.T
	node *netlab.Node
	r    Router
	cfg  Config
}

// newRig makes the router of a node. Its state is in a directory of the test.
func newRig(t *testing.T, node *netlab.Node, mode string, cfg Config) *rig {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = t.TempDir()
	}
	r, err := New(mode, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, node, r, cfg}
}

func (g *rig) sync(self Node, others ...Node) (w Wanted, err error) {
	g.t.Helper()
	_ = g.node.Do(func() error {
		w, err = g.r.Sync(context.Background(), self, others)
		return nil
	})
	return w, err
}

func (g *rig) mustSync(self Node, others ...Node) Wanted {
	g.t.Helper()
	w, err := g.sync(self, others...)
	if err != nil {
		g.t.Fatal(err)
	}
	return w
}

func (g *rig) remove() {
	g.t.Helper()
	if err := g.node.Do(func() error { return g.r.Remove(context.Background()) }); err != nil {
		g.t.Fatal(err)
	}
}

// changes returns how often the router has written to the kernel.
func (g *rig) changes() int { return g.r.(router).shared().changes }

// assertSettled fails the test if a second Sync, with the others in another order, or the first one of a new process writes to the kernel.
func (g *rig) assertSettled(self Node, others ...Node) {
	g.t.Helper()
	before := g.changes()
	reversed := slices.Clone(others)
	slices.Reverse(reversed)
	g.mustSync(self, reversed...)
	again := newRig(g.t, g.node, g.r.(router).name(), g.cfg)
	again.mustSync(self, others...)
	if g.changes() != before || again.changes() != 0 {
		g.t.Errorf("a second Sync: %d changes, after a restart: %d, want none", g.changes()-before, again.changes())
	}
}

// nodeFacts are those of the i-th node of a netlab.Cluster, with 10.1.<i>.0/24 and fd00:1:0:<i>::/64.
func nodeFacts(i int) Node {
	n := Node{Name: fmt.Sprintf("node%d", i), PodCIDRs: []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:1:0:%x::/64", i)),
	}}
	for _, p := range netlab.ClusterNode(i) {
		n.InternalIPs = append(n.InternalIPs, p.Addr())
	}
	return n
}

// ours are the routes of Sluice's protocol on a node, as ip(8) prints them.
func ours(t testing.TB, node *netlab.Node) []string {
	t.Helper()
	var all []string
	for _, f := range []string{"-4", "-6"} {
		for line := range strings.Lines(node.IPT(t, f+" route show table all proto 115")) {
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
	}
	slices.Sort(all)
	return all
}

func assertRoutes(t testing.TB, node *netlab.Node, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, ours(t, node)); diff != "" {
		t.Errorf("routes of protocol 115 (-want +got):\n%s", diff)
	}
}

const (
	to1v4 = "10.1.1.0/24 via 192.0.2.2 dev eth0"
	to2v4 = "10.1.2.0/24 via 192.0.2.3 dev eth0"
	to1v6 = "fd00:1:0:1::/64 via 2001:db8:1::2 dev eth0 metric 1024 pref medium"
	to2v6 = "fd00:1:0:2::/64 via 2001:db8:1::3 dev eth0 metric 1024 pref medium"
)

func TestPrivilegedHostGW(t *testing.T) {
	t.Parallel()
	c := netlab.NewClusterT(t, 1)
	g := newRig(t, c.Nodes[0], ModeHostGW, Config{})
	self, one, two := nodeFacts(0), nodeFacts(1), nodeFacts(2)

	w := g.mustSync(self, one, two)
	assertRoutes(t, g.node, to1v4, to2v4, to1v6, to2v6)
	if w.SelfAnnotations[AnnotationMode] != ModeHostGW || w.Again != 0 {
		t.Errorf("wanted: %+v", w)
	}
	g.assertSettled(self, one, two)

	t.Run("node goes", func(t *testing.T) {
		g.mustSync(self, two)
		assertRoutes(t, g.node, to2v4, to2v6)
	})
	t.Run("route goes", func(t *testing.T) {
		g.node.IPT(t, "route del 10.1.2.0/24")
		g.mustSync(self, two)
		assertRoutes(t, g.node, to2v4, to2v6)
	})
	t.Run("address changes", func(t *testing.T) {
		moved := nodeFacts(2)
		moved.InternalIPs = one.InternalIPs
		g.mustSync(self, moved)
		assertRoutes(t, g.node, strings.Replace(to2v4, "192.0.2.3", "192.0.2.2", 1), strings.Replace(to2v6, "1::3", "1::2", 1))
	})
	t.Run("pod with an address of the other node's CIDR", func(t *testing.T) {
		g.node.IPT(t, "route add 10.1.2.9 dev eth0")
		g.mustSync(self, two)
		assertRoutes(t, g.node, to2v4, to2v6)
		g.node.IPT(t, "route del 10.1.2.9 dev eth0")
	})
	t.Run("process restarts", func(t *testing.T) {
		again := newRig(t, g.node, ModeHostGW, Config{})
		again.mustSync(self, one)
		assertRoutes(t, g.node, to1v4, to1v6)
	})
	t.Run("mode changes", func(t *testing.T) {
		newRig(t, g.node, ModeNative, Config{}).mustSync(self, one)
		assertRoutes(t, g.node)
	})
	t.Run("remove", func(t *testing.T) {
		g.mustSync(self, one)
		g.remove()
		g.remove()
		assertRoutes(t, g.node)
	})
}

// What is wrong with one node is said, and the others have their routes.
func TestPrivilegedHostGWBadNodes(t *testing.T) {
	t.Parallel()
	c := netlab.NewClusterT(t, 1)
	g := newRig(t, c.Nodes[0], ModeHostGW, Config{})
	self, good := nodeFacts(0), nodeFacts(1)
	if err := c.Nodes[0].Do(func() error {
		_, err := netlab.Run("sh", "-ec", "ip addr add 203.0.113.9/32 dev lo; ip addr add 2001:db8:9::9/128 dev lo")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*Node)
		want   []string
		routes []string // of the node nevertheless
	}{
		"behind a router": {func(n *Node) {
			n.InternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), n.InternalIPs[1]}
		}, []string{"node bad: podCIDR 10.1.2.0/24: InternalIP 198.51.100.1 is on no segment of this node; "}, []string{to2v6}},
		"one family": {func(n *Node) { n.InternalIPs = n.InternalIPs[1:] },
			[]string{"node bad: podCIDR 10.1.2.0/24: the node has no InternalIP of IPv4"}, []string{to2v6}},
		"second address": {func(n *Node) {
			n.InternalIPs = append([]netip.Addr{netip.MustParseAddr("198.51.100.1")}, n.InternalIPs...)
		}, nil, []string{to2v4, to2v6}},
		"this node's subnet": {func(n *Node) { n.PodCIDRs[0] = netip.MustParsePrefix("192.0.2.128/25") },
			[]string{"node bad: podCIDR 192.0.2.128/25: overlaps 192.0.2.0/24, a subnet of this node"}, []string{to2v6}},
		"addresses on lo": {func(n *Node) {
			n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:9::/64")}
		}, []string{"node bad: podCIDR 2001:db8:9::/64: holds 2001:db8:9::9, an address of this node", "node bad: podCIDR 203.0.113.0/24: holds 203.0.113.9"}, nil},
		"everything": {func(n *Node) {
			n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		},
			[]string{"node bad: podCIDR 0.0.0.0/0: too wide", "node bad: podCIDR ::/0: too wide"}, nil},
		"nothing": {func(n *Node) { n.PodCIDRs, n.InternalIPs = nil, nil }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bad := nodeFacts(2)
			bad.Name = "bad"
			tc.change(&bad)
			_, err := g.sync(self, bad, good)
			nodes, rest := NodeErrors(err)
			if rest != nil {
				t.Error(rest)
			}
			var got []string
			for _, e := range nodes {
				got = append(got, e.Error())
			}
			slices.Sort(got)
			if len(got) != len(tc.want) {
				t.Errorf("errors %q, want %q", got, tc.want)
			}
			for i := range min(len(got), len(tc.want)) {
				if !strings.HasPrefix(got[i], tc.want[i]) {
					t.Errorf("error %q, want %q", got[i], tc.want[i])
				}
			}
			want := append([]string{to1v4, to1v6}, tc.routes...)
			slices.Sort(want)
			assertRoutes(t, g.node, want...)
		})
	}
}

// Routes of others stay as they are, and what stands in the way is named.
func TestPrivilegedForeignRoutes(t *testing.T) {
	t.Parallel()
	c := netlab.NewClusterT(t, 1)
	g := newRig(t, c.Nodes[0], ModeHostGW, Config{})
	self, one, two := nodeFacts(0), nodeFacts(1), nodeFacts(2)
	foreign := []string{
		"route add 10.1.1.0/24 via 192.0.2.254 proto static",
		"-6 route add fd00:1:0:1::/64 via 2001:db8:1::fe proto static",
		"route add 10.1.2.0/24 via 192.0.2.254 proto static metric 9", // another metric is no obstacle
		"route add 10.9.0.0/16 via 192.0.2.254 proto bird",
		"route add 10.1.2.0/24 via 192.0.2.254 proto 114 table 7",
	}
	for _, line := range foreign {
		g.node.IPT(t, line)
	}
	all := func() string {
		return g.node.IPT(t, "-4 route show table all") + g.node.IPT(t, "-6 route show table all")
	}
	before := all()
	_, err := g.sync(self, one, two)
	nodes, rest := NodeErrors(err)
	if len(nodes) != 2 || rest != nil || !strings.Contains(err.Error(), "podCIDR 10.1.1.0/24: the route 10.1.1.0/24 via 192.0.2.254") {
		t.Errorf("%v, want two routes that are not Sluice's", err)
	}
	assertRoutes(t, g.node, to2v4, to2v6)
	g.remove()
	if diff := cmp.Diff(before, all()); diff != "" {
		t.Errorf("routes of others (-before +after):\n%s", diff)
	}
}
