// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// dialed opens a conversation and fails the test if it cannot.
func dialed(t *testing.T, from e2etest.Place, network, local, addr string) *e2etest.Talk {
	t.Helper()
	c, err := e2etest.Dial(from, network, local, addr)
	if err != nil {
		t.Fatalf("%s from %s to %s: %v", network, local, addr, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Some servers look at the source port: NFS with "secure", IKE, filters of NTP and of the ephemeral range. It is the pod's own if it is
// free, whatever snatPorts says; test/e2e/parity compares it with upstream's.
func TestPrivilegedMasqueradeKeepsPorts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"snatPorts": "20000-20999"}`)
	rt := w.Runtime(e2etest.Net0())
	first, second := w.AddPod(rt, "first"), w.AddPod(rt, "second")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		server := e2etest.At(fam.Client(w.Client()), 9000)
		for _, port := range []struct{ own, min, max uint16 }{
			{53, 1, 511}, {123, 1, 511}, {500, 1, 511}, {700, 600, 1023}, {8080, 20000, 20999}, {30080, 20000, 20999},
			{40000, 20000, 20999}, {61000, 20000, 20999},
		} {
			local := fmt.Sprintf(":%d", port.own)
			if got := dialed(t, first, proto+fam.Suffix, local, server).Answer.Peer.Port(); got != port.own {
				t.Errorf("port %d is seen as %d, though it is free", port.own, got)
			}
			if got := dialed(t, second, proto+fam.Suffix, local, server).Answer.Peer.Port(); got == port.own || got < port.min || got > port.max {
				t.Errorf("port %d, which another pod has, is seen as %d, want one of %d to %d", port.own, got, port.min, port.max)
			}
		}
	})
}

// The node's own connection is opened later, from the port that a pod's connection to the same server has outside.
func TestPrivilegedNodeOpensPodsTuple(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	pod := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		server := e2etest.At(fam.Client(w.Client()), 9000)
		together(t, dialed(t, pod, proto+fam.Suffix, ":40000", server), dialed(t, w.Node, proto+fam.Suffix, ":40000", server))
	})
}

// together checks that the conversations are seen from different ports, the first from its own, and that all go on.
func together(t *testing.T, talks ...*e2etest.Talk) {
	t.Helper()
	seen := map[netip.AddrPort]bool{}
	for _, c := range talks {
		seen[c.Answer.Peer] = true
	}
	if len(seen) != len(talks) || talks[0].Answer.Peer.Port() != 40000 {
		t.Errorf("the connections are seen as %v, the first as %s", seen, talks[0].Answer.Peer)
	}
	for i := range e2etest.LongTalk {
		for j, c := range talks {
			if err := c.Send("round"); err != nil {
				t.Fatalf("connection %d, round %d: %v", j, i, err)
			}
		}
	}
}

// What netfilter masquerades on the node for others has no socket there. Whoever is first keeps the port, and both go on.
func TestPrivilegedMasqueradeBesideNetfilter(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	ours, late := w.AddPod(rt, "ours"), w.AddPod(rt, "late")
	n := e2etest.Net1()
	n.Extra = e2etest.Merge(n.Extra, e2etest.Attributes{"ipMasqBackend": "nftables"})
	rt = w.Runtime(n)
	other, early := w.AddPod(rt, "other"), w.AddPod(rt, "early")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, w.Client(), "client", ":9001")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for port, from := range map[uint16][]*e2etest.Pod{9000: {ours, other}, 9001: {early, late}} {
			var talks []*e2etest.Talk
			for _, p := range from {
				talks = append(talks, dialed(t, p, proto+fam.Suffix, ":40000", e2etest.At(fam.Client(w.Client()), port)))
			}
			together(t, talks...)
		}
	})
}

// The sockets of tunnels are the kernel's own: no process has them.
func TestPrivilegedMasqueradeSparesTunnels(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.MustRun(t, w.Node, "ip link add flannel.1 type vxlan id 1 dstport 8472 dev eth0 nolearning local "+e2etest.Families()[0].Node(w.Client()).String())
	e2etest.MustRun(t, w.Node, "ip link add flannel-v6.1 type vxlan id 1 dstport 8472 dev eth0 nolearning local "+e2etest.Families()[1].Node(w.Client()).String())
	e2etest.MustRun(t, w.Node, "ip link set flannel.1 up")
	e2etest.MustRun(t, w.Node, "ip link set flannel-v6.1 up")
	spared := func(t *testing.T, port uint16) {
		t.Helper()
		for _, fam := range e2etest.Families() {
			c := dialed(t, p, "udp"+fam.Suffix, fmt.Sprintf(":%d", port), e2etest.At(fam.Client(w.Client()), 9000))
			if c.Answer.Peer.Port() == port {
				t.Errorf("IPv%s: the pod's connection took the tunnel's port %d", fam.Suffix, port)
			}
		}
	}
	spared(t, 8472)
	require.Link(t, "wireguard")
	e2etest.MustRun(t, w.Node, "ip link add wg0 type wireguard")
	w.DoOnNode(func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		port := 51820
		return c.ConfigureDevice("wg0", wgtypes.Config{ListenPort: &port})
	})
	e2etest.MustRun(t, w.Node, "ip link set wg0 up")
	spared(t, 51820)
}
