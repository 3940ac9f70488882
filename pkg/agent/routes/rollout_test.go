// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// talkAll has each node send datagrams to a pod address of each other one, in both families, until the returned function is called. It
// says how many there were, and fails the test for each that is lost.
func talkAll(t *testing.T, rigs []*rig) (flows func(when string), end func()) {
	t.Helper()
	var sent []*atomic.Int64
	lost := &atomic.Int64{}
	stop, done := make(chan struct{}), make(chan error, 100)
	for to, g := range rigs {
		for from, h := range rigs { // the segment is not what is tried: its neighbours are known first
			for _, a := range nodeFacts(to).InternalIPs {
				if _, err := h.node.DialContext(t.Context(), "tcp", netip.AddrPortFrom(a, 9).String()); !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatalf("node %d to node %d: %v", from, to, err)
				}
			}
		}
		for _, p := range nodeFacts(to).PodCIDRs {
			addr := netip.AddrPortFrom(podAddr(p), 7000).String()
			closeServer, err := g.node.ServeUDP(addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = closeServer() })
			for from, h := range rigs {
				if from == to {
					continue
				}
				source := firstCIDR(nodeFacts(from), p.Addr().Is4())
				conn, err := h.node.DialFrom(context.Background(), "udp", netip.AddrPortFrom(podAddr(source), 0).String(), addr)
				if err != nil {
					t.Fatal(err)
				}
				n := &atomic.Int64{}
				sent = append(sent, n)
				go func() { done <- pingPong(conn, stop, n, lost) }()
			}
		}
	}
	flows = func(when string) {
		t.Helper()
		for i, n := range sent {
			for before, start := n.Load(), time.Now(); n.Load() < before+3; time.Sleep(time.Millisecond) {
				if time.Since(start) > netlab.Patient(5*time.Second) {
					t.Fatalf("%s: conversation %d stands still", when, i)
				}
			}
		}
		if n := lost.Load(); n > 0 {
			t.Fatalf("%s: %d datagrams are lost", when, n)
		}
	}
	return flows, func() {
		close(stop)
		var all int64
		for _, n := range sent {
			if err := <-done; err != nil {
				t.Error(err)
			}
			all += n.Load()
		}
		t.Logf("%d datagrams there and back, %d lost", all, lost.Load())
	}
}

// A rollout takes one node after the other from host-gw to vxlan, and back. Nodes of both modes reach each other, and no datagram is lost,
// whichever node learns first what another has done. At the end nothing of the other mode is left.
func TestPrivilegedModeRollout(t *testing.T) {
	t.Parallel()
	require.Link(t, "vxlan")
	rigs, nodes := newCluster(t, ModeHostGW)
	flows, end := talkAll(t, rigs)
	flows("before")
	others := func(i int) (all []Node) {
		for j := range nodes {
			if j != i {
				all = append(all, nodes[j])
			}
		}
		return all
	}
	for _, mode := range []string{ModeVXLAN, ModeHostGW} {
		for i := range rigs {
			rigs[i] = newRig(t, rigs[i].node, mode, Config{})
			w := rigs[i].mustSync(nodes[i], others(i)...)
			flows(fmt.Sprintf("node %d is in mode %s, and none knows", i, mode))
			nodes[i].Annotations = applied(nodes[i].Annotations, w)
			for j, g := range rigs {
				if j == i {
					continue
				}
				w := g.mustSync(nodes[j], others(j)...)
				nodes[j].Annotations = applied(nodes[j].Annotations, w)
				flows(fmt.Sprintf("node %d is in mode %s, and node %d knows", i, mode, j))
			}
		}
		for i, g := range rigs { // the last to change has told all
			g.mustSync(nodes[i], others(i)...)
			g.assertSettled(nodes[i], others(i)...)
			routes, devices := strings.Join(ours(t, g.node), "\n"), g.node.IPT(t, "link show type vxlan")
			if vxlan := mode == ModeVXLAN; strings.Count(routes, "flannel") > 0 != vxlan || strings.Contains(routes, "eth0") == vxlan || devices == "" == vxlan {
				t.Errorf("node %d in mode %s:\n%s\n%s", i, mode, routes, devices)
			}
		}
	}
	end()
}

// Nodes move over from flannel's host-gw one at a time: flannel's nodes know the moved one by its annotations, and a node takes over the
// routes that flannel has left. A new node, which never had flannel, has the annotations too.
func TestPrivilegedHostGWWithFlannel(t *testing.T) {
	t.Parallel()
	rigs, nodes := newCluster(t, ModeHostGW)
	for i, n := range nodes {
		want := map[string]string{
			flannelType: "host-gw", flannelManaged: "true", flannelData: "null", flannelDataV6: "null",
			flannelPublic: n.InternalIPs[0].String(), flannelPublicV6: n.InternalIPs[1].String(), AnnotationMode: ModeHostGW,
		}
		if fmt.Sprint(n.Annotations) != fmt.Sprint(want) {
			t.Errorf("node %d: %v, want %v", i, n.Annotations, want)
		}
	}
	// As flannel leaves it, with a route of a third party.
	g := rigs[0]
	g.remove()
	for _, route := range []string{to1v4, to1v6, to2v6} {
		g.node.IPT(t, "route add "+strings.TrimSuffix(route, " pref medium")+" proto boot")
	}
	g.node.IPT(t, "route add 10.1.2.0/24 via 192.0.2.3 proto static")
	left := nodes[0]
	left.Annotations = map[string]string{flannelType: "host-gw", flannelManaged: "true", flannelData: "null", flannelPublic: left.InternalIPs[0].String()}
	moved := newRig(t, g.node, ModeHostGW, Config{})
	_, err := moved.sync(left, nodes[1:]...)
	if refused, rest := NodeErrors(err); rest != nil || len(refused) != 1 || !strings.Contains(refused[0].Error(), "10.1.2.0/24") {
		t.Errorf("%v, want an error for the route of a third party alone", err)
	}
	assertRoutes(t, g.node, to1v4, to1v6, to2v6)
	if got := g.node.IPT(t, "route show proto boot") + g.node.IPT(t, "-6 route show proto boot"); strings.Contains(got, "10.1.") || strings.Contains(got, "fd00:") {
		t.Errorf("flannel's routes are left:\n%s", got)
	}
}
