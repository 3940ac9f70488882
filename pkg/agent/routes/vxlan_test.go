// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// join runs the routers of all nodes until each knows what the others say of themselves. It returns the nodes' facts.
func join(t *testing.T, rigs ...*rig) []Node {
	t.Helper()
	nodes := make([]Node, len(rigs))
	for i := range rigs {
		nodes[i] = nodeFacts(i)
	}
	for round := range 2 {
		for i, g := range rigs {
			others := slices.Delete(slices.Clone(nodes), i, i+1)
			w, err := g.sync(nodes[i], others...)
			if err != nil && round > 0 {
				t.Fatalf("node %d: %v", i, err)
			}
			nodes[i].Annotations = applied(nodes[i].Annotations, w)
		}
	}
	return nodes
}

// newCluster joins three nodes in a mode, each with an address out of its pod CIDRs.
func newCluster(t *testing.T, mode string) ([]*rig, []Node) {
	t.Helper()
	var rigs []*rig
	for i, n := range netlab.NewClusterT(t, 3).Nodes {
		podAddrs(t, n, nodeFacts(i))
		rigs = append(rigs, newRig(t, n, mode, Config{}))
	}
	return rigs, join(t, rigs...)
}

// applied is what the API server has after the agent wrote w.
func applied(have map[string]string, w Wanted) map[string]string {
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	for k, v := range w.SelfAnnotations {
		if all[k] = v; v == "" {
			delete(all, k)
		}
	}
	return all
}

// podAddrs gives a node an address out of each of its pod CIDRs, as a pod would have.
func podAddrs(t *testing.T, node *netlab.Node, n Node) {
	t.Helper()
	node.IPT(t, "link add pods type bridge")
	node.IPT(t, "link set pods up")
	for _, p := range n.PodCIDRs {
		nodad := ""
		if p.Addr().Is6() {
			nodad = " nodad"
		}
		node.IPT(t, fmt.Sprintf("addr add %s/%d dev pods%s", podAddr(p), p.Addr().BitLen(), nodad))
	}
}

// podAddr is the fifth address of a pod CIDR.
func podAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] = 5
	a, _ := netip.AddrFromSlice(b)
	return a
}

// assertReach sends from the pod address of one node to that of another, by UDP, which loses what is lost, and with a packet
// that does not fit into one of the uplink.
func assertReach(t *testing.T, from *netlab.Node, self Node, to *netlab.Node, other Node) {
	t.Helper()
	for _, a := range other.InternalIPs { // the segment is not what is tried: its neighbours are known first
		if _, err := from.DialContext(t.Context(), "tcp", netip.AddrPortFrom(a, 9).String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("the other node itself: %v", err)
		}
	}
	for _, src := range self.PodCIDRs {
		i := slices.IndexFunc(other.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == src.Addr().Is4() })
		if i < 0 {
			continue
		}
		dst := netip.AddrPortFrom(podAddr(other.PodCIDRs[i]), 7000).String()
		stop, err := to.ServeUDP(dst)
		if err != nil {
			t.Fatal(err)
		}
		err = func() error {
			c, err := from.DialFrom(context.Background(), "udp", netip.AddrPortFrom(podAddr(src), 0).String(), dst)
			if err != nil {
				return err
			}
			defer c.Close()
			for _, size := range []int{10, 4000} {
				if err := c.SetDeadline(time.Now().Add(netlab.Patient(3 * time.Second))); err != nil {
					return err
				}
				if _, err := c.Write(make([]byte, size)); err != nil {
					return err
				}
				buf := make([]byte, 1<<16)
				if n, err := c.Read(buf); err != nil {
					return fmt.Errorf("%d bytes: %w", size, err)
				} else if n < size || !strings.HasPrefix(string(buf[:n]), netip.AddrPortFrom(podAddr(src), 0).Addr().String()) && src.Addr().Is4() {
					return fmt.Errorf("answer of %d bytes: %.40q", n, buf[:n])
				}
			}
			return nil
		}()
		_ = stop()
		if err != nil {
			t.Errorf("%s to %s: %v", src, dst, err)
		}
	}
}

// tunnelState is what ip and bridge say of the VXLAN devices.
func tunnelState(t testing.TB, node *netlab.Node) string {
	t.Helper()
	var out strings.Builder
	for _, dev := range []string{"flannel.1", "flannel-v6.1"} {
		for _, cmd := range []string{"ip -d link show dev " + dev, "bridge fdb show dev " + dev, "ip neigh show nud permanent dev " + dev, "ip addr show dev " + dev + " scope global"} {
			args := strings.Fields(cmd)
			_ = node.Do(func() error {
				s, err := netlab.Run(args[0], args[1:]...)
				if err == nil {
					out.WriteString(s)
				}
				return nil
			})
		}
	}
	return out.String()
}

func TestPrivilegedVXLAN(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	rigs, nodes := newCluster(t, ModeVXLAN)
	g, self := rigs[0], nodes[0]

	mac4, mac6 := macOf(t, nodes[1], flannelData), macOf(t, nodes[1], flannelDataV6)
	state := tunnelState(t, g.node)
	for _, want := range []string{
		"vxlan id 1 local 192.0.2.1 dev eth0 srcport 0 0 dstport 8472 nolearning", "vxlan id 1 local 2001:db8:1::1 dev eth0 srcport 0 0 dstport 8472 nolearning",
		"mtu 1450", "mtu 1430", "inet 10.1.0.0/32", "inet6 fd00:1::/128", "alias sluice-agent vxlan",
		mac4 + " dst 192.0.2.2 self permanent", mac6 + " dst 2001:db8:1::2 self permanent",
		"10.1.1.0 lladdr " + mac4 + " PERMANENT", "fd00:1:0:1:: lladdr " + mac6 + " PERMANENT",
	} {
		if !strings.Contains(state, want) {
			t.Errorf("no %q in\n%s", want, state)
		}
	}
	assertRoutes(t, g.node,
		"10.1.1.0/24 via 10.1.1.0 dev flannel.1 onlink", "10.1.2.0/24 via 10.1.2.0 dev flannel.1 onlink",
		"fd00:1:0:1::/64 via fd00:1:0:1:: dev flannel-v6.1 metric 1024 onlink pref medium", "fd00:1:0:2::/64 via fd00:1:0:2:: dev flannel-v6.1 metric 1024 onlink pref medium")
	assertReach(t, g.node, self, rigs[1].node, nodes[1])
	assertReach(t, rigs[2].node, nodes[2], g.node, self)
	if want := (map[string]string{
		AnnotationMode: ModeVXLAN, flannelType: "vxlan", flannelManaged: "true", flannelPublic: "192.0.2.1", flannelPublicV6: "2001:db8:1::1",
		flannelData: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, macOf(t, self, flannelData)), flannelDataV6: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, macOf(t, self, flannelDataV6)),
	}); !maps.Equal(self.Annotations, want) {
		t.Errorf("annotations (-want +got):\n%s", cmp.Diff(want, self.Annotations))
	}
	if g.r.MTU(1500) != 1430 {
		t.Errorf("MTU %d, want that of the smaller device", g.r.MTU(1500))
	}

	g.assertSettled(self, nodes[1:]...)

	t.Run("node goes", func(t *testing.T) {
		g.mustSync(self, nodes[2])
		if state := tunnelState(t, g.node); strings.Contains(state, mac4) || strings.Contains(state, mac6) || !strings.Contains(state, macOf(t, nodes[2], flannelData)) {
			t.Errorf("node1 is still there, or node2 is not:\n%s", state)
		}
		assertRoutes(t, g.node, "10.1.2.0/24 via 10.1.2.0 dev flannel.1 onlink", "fd00:1:0:2::/64 via fd00:1:0:2:: dev flannel-v6.1 metric 1024 onlink pref medium")
		g.mustSync(self, nodes[1:]...)
	})
	t.Run("device goes", func(t *testing.T) {
		g.node.IPT(t, "link del flannel.1")
		g.mustSync(self, nodes[1:]...)
		assertReach(t, g.node, self, rigs[1].node, nodes[1])
	})
	t.Run("parameters change", func(t *testing.T) {
		mac := macOf(t, self, flannelData)
		_, err := newRig(t, g.node, ModeVXLAN, Config{VXLAN: VXLAN{VNI: 7, Port: 4789}}).sync(self, nodes[1:]...)
		if bad, rest := NodeErrors(err); len(bad) != 4 || rest != nil || !strings.Contains(err.Error(), "the VNI is not 7") {
			t.Errorf("%v, want each node's VNI in each family", err)
		}
		if state := tunnelState(t, g.node); !strings.Contains(state, "vxlan id 7") || !strings.Contains(state, "dstport 4789") || !strings.Contains(state, mac) {
			t.Errorf("want VNI 7 and the MAC %s:\n%s", mac, state)
		}
		newRig(t, g.node, ModeVXLAN, Config{}).mustSync(self, nodes[1:]...)
		assertReach(t, g.node, self, rigs[1].node, nodes[1])
	})
	t.Run("uplink's MTU changes", func(t *testing.T) {
		g.node.IPT(t, "link set eth0 mtu 1400")
		g.mustSync(self, nodes[1:]...)
		if state := tunnelState(t, g.node); !strings.Contains(state, "mtu 1350") || !strings.Contains(state, "mtu 1330") {
			t.Errorf("want 1350 and 1330:\n%s", state)
		}
		g.node.IPT(t, "link set eth0 mtu 1500")
		g.mustSync(self, nodes[1:]...)
	})
	t.Run("own address unknown", func(t *testing.T) {
		routes := ours(t, g.node)
		lost := self
		lost.InternalIPs = nil
		if _, err := g.sync(lost, nodes[1:]...); err == nil {
			t.Error("no error without an InternalIP")
		}
		assertRoutes(t, g.node, routes...)
	})
	t.Run("mode changes", func(t *testing.T) {
		native := newRig(t, g.node, ModeNative, Config{}).mustSync(self, nodes[1:]...)
		assertRoutes(t, g.node)
		if state := tunnelState(t, g.node); state != "" {
			t.Errorf("devices are left:\n%s", state)
		}
		if got := applied(self.Annotations, native); !maps.Equal(got, map[string]string{AnnotationMode: ModeNative}) {
			t.Errorf("annotations %v, want flannel's to be gone", got)
		}
		newRig(t, g.node, ModeVXLAN, Config{}).mustSync(self, nodes[1:]...)
		assertReach(t, g.node, self, rigs[1].node, nodes[1])
	})
	t.Run("remove", func(t *testing.T) {
		g.remove()
		assertRoutes(t, g.node)
		if state := tunnelState(t, g.node); state != "" {
			t.Errorf("devices are left:\n%s", state)
		}
	})
}

func macOf(t testing.TB, n Node, key string) string {
	t.Helper()
	_, mac, ok := strings.Cut(n.Annotations[key], `"VtepMAC":"`)
	if !ok {
		t.Fatalf("%s: %v", n.Name, n.Annotations)
	}
	return strings.TrimSuffix(mac, `"}`)
}

// flannelNode makes by hand what flannel v0.27 makes on the i-th node of a cluster, and returns its annotations. knows are the nodes that it has heard of.
func flannelNode(t *testing.T, node *netlab.Node, i int, knows ...Node) Node {
	t.Helper()
	n := nodeFacts(i)
	n.Annotations = map[string]string{flannelType: "vxlan", flannelManaged: "true"}
	for _, p := range n.PodCIDRs {
		v4 := p.Addr().Is4()
		dev, nodad := "flannel.1", ""
		if !v4 {
			dev, nodad = "flannel-v6.1", " nodad"
		}
		data, public, _ := dataKeys(v4)
		mac := fmt.Sprintf("ae:00:00:00:0%d:0%d", i, len(dev)-9)
		node.IPT(t, fmt.Sprintf("link add %s address %s mtu 1450 type vxlan id 1 local %s dev eth0 dstport 8472 nolearning", dev, mac, firstOf(n.InternalIPs, v4)))
		node.IPT(t, fmt.Sprintf("addr add %s/%d dev %s%s", p.Addr(), p.Addr().BitLen(), dev, nodad))
		node.IPT(t, "link set "+dev+" up")
		n.Annotations[data] = fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac)
		n.Annotations[public] = firstOf(n.InternalIPs, v4).String()
		for _, o := range knows {
			cidr := firstCIDR(o, v4)
			node.IPT(t, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", cidr.Addr(), macOf(t, o, data), dev))
			if err := node.Do(func() error {
				_, err := netlab.Run("bridge", "fdb", "replace", macOf(t, o, data), "dev", dev, "dst", o.Annotations[public], "self", "permanent")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			node.IPT(t, fmt.Sprintf("route replace %s via %s dev %s onlink", cidr, cidr.Addr(), dev))
		}
	}
	return n
}

// Nodes move over from flannel one at a time. A node with flannel and one with Sluice reach each other, and a node keeps its
// devices, their MACs and its routes when Sluice takes over.
func TestPrivilegedVXLANWithFlannel(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	c := netlab.NewClusterT(t, 2)
	podAddrs(t, c.Nodes[0], nodeFacts(0))
	podAddrs(t, c.Nodes[1], nodeFacts(1))

	// One node of Sluice, which learns of flannel's node, and that one of it.
	g := newRig(t, c.Nodes[0], ModeVXLAN, Config{})
	self := nodeFacts(0)
	self.Annotations = applied(nil, g.mustSync(self))
	other := flannelNode(t, c.Nodes[1], 1, self)
	g.mustSync(self, other)
	assertReach(t, c.Nodes[0], self, c.Nodes[1], other)
	assertReach(t, c.Nodes[1], other, c.Nodes[0], self)

	// Then Sluice takes over the other one, while a conversation goes on.
	before := c.Nodes[1].IPT(t, "-o link show type vxlan")
	g2 := newRig(t, c.Nodes[1], ModeVXLAN, Config{})
	w := g2.mustSync(other, self)
	if got := applied(other.Annotations, w); got[flannelData] != other.Annotations[flannelData] || got[flannelDataV6] != other.Annotations[flannelDataV6] {
		t.Errorf("annotations %v, want the devices' MACs of before %v", got, other.Annotations)
	}
	after := c.Nodes[1].IPT(t, "-o link show type vxlan")
	if a, b := strings.Fields(before)[0], strings.Fields(after)[0]; a != b {
		t.Errorf("the device was made anew:\n%s%s", before, after)
	}
	assertRoutes(t, c.Nodes[1], "10.1.0.0/24 via 10.1.0.0 dev flannel.1 onlink", "fd00:1::/64 via fd00:1:: dev flannel-v6.1 metric 1024 onlink pref medium")
	assertReach(t, c.Nodes[0], self, c.Nodes[1], other)
	assertReach(t, c.Nodes[1], other, c.Nodes[0], self)
	g2.mustSync(other)
	if left := c.Nodes[1].IPT(t, "route show dev flannel.1") + c.Nodes[1].IPT(t, "neigh show dev flannel.1"); left != "" {
		t.Errorf("the other node has gone, and there is\n%s", left)
	}
}

// What a node writes into its annotations does not change what others have.
func TestPrivilegedVXLANBadAnnotations(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	c := netlab.NewClusterT(t, 1)
	g := newRig(t, c.Nodes[0], ModeVXLAN, Config{})
	self := nodeFacts(0)
	self.Annotations = applied(nil, g.mustSync(self))
	facts := func(i int, age time.Duration) Node {
		n := nodeFacts(i)
		n.Created = baseTime.Add(age)
		n.PodCIDRs = n.PodCIDRs[:1]
		n.Annotations = map[string]string{
			flannelType: "vxlan", flannelManaged: "true", flannelPublic: n.InternalIPs[0].String(), flannelData: fmt.Sprintf(`{"VNI":1,"VtepMAC":"ae:00:00:00:00:0%d"}`, i),
		}
		return n
	}
	victim := facts(1, time.Hour)
	g.mustSync(self, victim)
	good := tunnelState(t, g.node)
	for name, tc := range map[string]struct {
		change func(*Node)
		want   string
	}{
		"MAC of the victim, by an older node": {func(n *Node) { n.Annotations[flannelData] = victim.Annotations[flannelData] }, "VtepMAC ae:00:00:00:00:01: another node has it"},
		"MAC and address of the victim":       {func(n *Node) { maps.Copy(n.Annotations, victim.Annotations) }, "VtepMAC ae:00:00:00:00:01: another node has it"},
		"MAC of this node":                    {func(n *Node) { n.Annotations[flannelData] = self.Annotations[flannelData] }, "this node has it"},
		"address of this node":                {func(n *Node) { n.Annotations[flannelPublic] = "192.0.2.1" }, "public IP 192.0.2.1: this node has it"},
		"multicast MAC":                       {func(n *Node) { n.Annotations[flannelData] = `{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}` }, "no MAC address of a device"},
		"no MAC":                              {func(n *Node) { n.Annotations[flannelData] = `{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}` }, "no MAC address of a device"},
		"long MAC":                            {func(n *Node) { n.Annotations[flannelData] = `{"VNI":1,"VtepMAC":"02:00:5e:10:00:00:00:01"}` }, "no MAC address of a device"},
		"no JSON":                             {func(n *Node) { n.Annotations[flannelData] = `{` }, `annotation flannel.alpha.coreos.com/backend-data: "{": not`},
		"too much": {func(n *Node) {
			n.Annotations[flannelData] = `{"VNI":1,` + strings.Repeat(" ", 1<<17) + `"VtepMAC":"ae:00:00:00:00:02"}`
		}, `not {"VNI":...`},
		"another VNI":     {func(n *Node) { n.Annotations[flannelData] = `{"VNI":2,"VtepMAC":"ae:00:00:00:00:02"}` }, "the VNI is not 1"},
		"null":            {func(n *Node) { n.Annotations[flannelData] = "null" }, "the node has no VXLAN device of IPv4 yet"},
		"another backend": {func(n *Node) { n.Annotations[flannelType] = "udp" }, `backend-type: "udp": not vxlan`},
		"host-gw on another segment": {func(n *Node) {
			n.Annotations[flannelType], n.InternalIPs = "host-gw", []netip.Addr{netip.MustParseAddr("198.51.100.9")}
		}, "is on no segment of this node"},
		"nothing":                        {func(n *Node) { n.Annotations = nil }, "backend-type: missing"},
		"an address of the other family": {func(n *Node) { n.Annotations[flannelPublic] = "2001:db8:1::2" }, "not an IPv4 address"},
		"a multicast address":            {func(n *Node) { n.Annotations[flannelPublic] = "224.0.0.1" }, "not an IPv4 address"},
		"no address":                     {func(n *Node) { n.Annotations[flannelPublic] = "x" }, "not an IPv4 address"},
		"the victim's CIDR, by a node of the same age": {func(n *Node) { n.Created, n.PodCIDRs = victim.Created.Add(1), victim.PodCIDRs }, "overlaps podCIDR 10.1.1.0/24 of node node1"},
	} {
		t.Run(name, func(t *testing.T) {
			evil := facts(2, 0)
			evil.Name = "evil"
			tc.change(&evil)
			_, err := g.sync(self, evil, victim)
			bad, rest := NodeErrors(err)
			if len(bad) != 1 || rest != nil || bad[0].Node != "evil" || !strings.Contains(bad[0].Reason, tc.want) {
				t.Errorf("%v, want %q of node evil", err, tc.want)
			}
			assertRoutes(t, g.node, "10.1.1.0/24 via 10.1.1.0 dev flannel.1 onlink")
			if diff := cmp.Diff(good, tunnelState(t, g.node)); diff != "" {
				t.Errorf("devices and neighbours (-before +after):\n%s", diff)
			}
		})
	}
	t.Run("after a restart", func(t *testing.T) {
		evil := facts(2, 0)
		evil.Annotations[flannelData] = victim.Annotations[flannelData]
		if _, err := newRig(t, g.node, ModeVXLAN, Config{}).sync(self, evil, victim); err == nil {
			t.Error("no error")
		}
		assertRoutes(t, g.node, "10.1.1.0/24 via 10.1.1.0 dev flannel.1 onlink")
	})
}

// A device of another type with that name is not touched.
func TestPrivilegedVXLANNameTaken(t *testing.T) {
	t.Parallel()
	c := netlab.NewClusterT(t, 1)
	c.Nodes[0].IPT(t, "link add flannel.1 type bridge")
	g := newRig(t, c.Nodes[0], ModeVXLAN, Config{})
	if _, err := g.sync(nodeFacts(0)); err == nil || !strings.Contains(err.Error(), "device flannel.1: it is of type bridge") {
		t.Errorf("%v, want the device's type", err)
	}
	g.remove()
	c.Nodes[0].IPT(t, "link show flannel.1")
}

func TestOwnMAC(t *testing.T) {
	t.Parallel()
	a := Node{Name: "a"}
	first := ownMAC(a, true)
	if !isUnicastMAC(first) || first[0]&2 == 0 || first.String() != ownMAC(a, true).String() || first.String() == ownMAC(a, false).String() || first.String() == ownMAC(Node{Name: "b"}, true).String() {
		t.Errorf("%s: want one for each node and family, unicast and local", first)
	}
	a.Annotations = map[string]string{flannelData: `{"VNI":1,"VtepMAC":"ae:00:00:00:00:02"}`, flannelDataV6: `{"VNI":1,"VtepMAC":"ff:00:00:00:00:02"}`}
	if got := ownMAC(a, true); got.String() != "ae:00:00:00:00:02" {
		t.Errorf("%s, want what the node said before", got)
	}
	if got := ownMAC(a, false); !isUnicastMAC(got) {
		t.Errorf("%s of a bad annotation", got)
	}
}

func FuzzReadVTEP(f *testing.F) {
	f.Add("vxlan", `{"VNI":1,"VtepMAC":"ae:00:00:00:00:02"}`, "192.0.2.1")
	f.Fuzz(func(t *testing.T, kind, data, public string) {
		n := Node{Annotations: map[string]string{flannelType: kind, flannelData: data, flannelPublic: public}}
		if v, err := readVTEP(n, true, 1); err == nil && (!isUnicastMAC(net.HardwareAddr(v.mac[:])) || !v.remote.Is4() || !isUnicast(v.remote)) {
			t.Fatalf("%v", v)
		}
	})
}
