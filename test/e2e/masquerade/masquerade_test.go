// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// A pod reaches the outside with the node's address on the way it takes.
func TestPrivilegedMasquerade(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	for _, c := range w.Clients {
		e2etest.Serve(t, c, c.Name, ":9000")
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, c := range w.Clients {
			got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(c), 9000))
			if got.Server != c.Name || got.Peer.Addr() != fam.Node(c) {
				t.Errorf("%s saw %s, want %s to see %s", got.Server, got.Peer, c.Name, fam.Node(c))
			}
		}
	})
}

// Two pods that use one source port toward one server stay apart.
func TestPrivilegedMasqueradeSamePort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	pods := []*e2etest.Pod{w.AddPod(rt, "a"), w.AddPod(rt, "b"), w.AddPod(rt, "c")}
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		seen := map[netip.AddrPort]string{}
		var talks []*e2etest.Talk
		for _, p := range pods {
			c, err := e2etest.Dial(p, proto+fam.Suffix, ":40000", e2etest.At(fam.Client(w.Client()), 9000))
			if err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			defer c.Close()
			talks = append(talks, c)
			if other := seen[c.Answer.Peer]; other != "" || c.Answer.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("%s is seen as %s, like %q; want a port of its own at %s", p.Name, c.Answer.Peer, other, fam.Node(w.Client()))
			}
			seen[c.Answer.Peer] = p.Name
		}
		for i := range e2etest.LongTalk {
			for j, c := range talks {
				if err := c.Send("round"); err != nil {
					t.Fatalf("%s, round %d: %v", pods[j].Name, i, err)
				}
			}
		}
	})
}

// A masqueraded connection never takes the port of one that the node itself
// has open to the same server.
func TestPrivilegedMasqueradeSparesTheNode(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		server := e2etest.At(fam.Client(w.Client()), 9000)
		own, err := e2etest.Dial(w.Node, proto+fam.Suffix, ":62000", server)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		pods, err := e2etest.Dial(p, proto+fam.Suffix, ":62000", server)
		if err != nil {
			t.Fatal(err)
		}
		defer pods.Close()
		if pods.Answer.Peer == own.Answer.Peer {
			t.Errorf("pod and node are both seen as %s", own.Answer.Peer)
		}
		for range e2etest.LongTalk {
			if err := own.Send("node"); err != nil {
				t.Fatalf("the node's connection: %v", err)
			}
			if err := pods.Send("pod"); err != nil {
				t.Fatalf("the pod's connection: %v", err)
			}
		}
	})
}

// Nor that of a socket on which the node listens, or takes datagrams: those who ask there are answered by the node.
func TestPrivilegedMasqueradeSparesListeners(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":62000")
	e2etest.Serve(t, w.Node, "node", ":62001")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		pods, err := e2etest.Dial(p, proto+fam.Suffix, ":62001", e2etest.At(fam.Client(w.Client()), 62000))
		if err != nil {
			t.Fatal(err)
		}
		defer pods.Close()
		if pods.Answer.Peer.Port() == 62001 {
			t.Error("the pod's connection took the port that the node listens on")
		}
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 62001)); got.Server != "node" {
			t.Errorf("answered by %s, want node", got.Server)
		}
		if err := pods.SendRounds(e2etest.LongTalk); err != nil {
			t.Errorf("the pod's connection: %v", err)
		}
	})
}

// Who connects to the pod's own address is answered from it.
func TestPrivilegedInboundIsNotMasqueraded(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web")
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(p), 80))
		if got.Server != "web" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("%s saw %s, want web to see %s", got.Server, got.Peer, fam.Client(w.Client()))
		}
	})
}

// Pods of one subnet see each other's own addresses.
func TestPrivilegedOwnSubnetIsNotMasqueraded(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	a, b := w.AddPod(rt, "a"), w.AddPod(rt, "b")
	e2etest.Serve(t, b, "b", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80))
		if got.Server != "b" || got.Peer.Addr() != fam.Pod(a) {
			t.Errorf("%s saw %s, want b to see %s", got.Server, got.Peer, fam.Pod(a))
		}
	})
}

// A part of the subnet may lie behind an uplink, as it does when nodes share
// one: it sees the pod's own address too.
func TestPrivilegedOwnSubnetElsewhere(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		far := map[string]string{"4": "10.1.200.1", "6": "fd00:10:1::c8:1"}[fam.Suffix]
		length := map[string]string{"4": "/32", "6": "/128"}[fam.Suffix]
		e2etest.MustRun(t, w.Client(), "ip addr add "+far+length+" dev lo"+e2etest.NoDAD(fam.Suffix == "6"))
		e2etest.ServeFamily(t, w.Client(), fam.Suffix, "far", e2etest.At(netip.MustParseAddr(far), 9000))
		e2etest.MustRun(t, w.Node, "ip route add "+far+length+" via "+fam.Client(w.Client()).String())
		e2etest.MustRun(t, p, "ip route add "+far+length+" via "+fam.Gateway)
		for _, proto := range []string{"tcp", "udp"} {
			got := e2etest.Ask(t, p, proto, e2etest.At(netip.MustParseAddr(far), 9000))
			if got.Server != "far" || got.Peer.Addr() != fam.Pod(p) {
				t.Errorf("%s: %s saw %s, want far to see %s", proto, got.Server, got.Peer, fam.Pod(p))
			}
		}
	})
}

// Without ipMasq the outside sees the pod.
func TestPrivilegedNoMasquerade(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Network{NoMasq: true}), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Pod(p) {
			t.Errorf("the client saw %s, want %s", got.Peer, fam.Pod(p))
		}
	})
}

// The operator's exceptions keep the pod's address, everything else does not.
func TestPrivilegedNonMasqueradeCIDRs(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	w.Configure(`{"nonMasqueradeCIDRs": ["192.0.2.0/24", "2001:db8:1::/64"]}`)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	for _, c := range w.Clients {
		e2etest.Serve(t, c, c.Name, ":9000")
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Clients[0]), 9000)); got.Peer.Addr() != fam.Pod(p) {
			t.Errorf("inside the exception: the client saw %s, want %s", got.Peer, fam.Pod(p))
		}
		if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Clients[1]), 9000)); got.Peer.Addr() != fam.Node(w.Clients[1]) {
			t.Errorf("outside of it: the client saw %s, want %s", got.Peer, fam.Node(w.Clients[1]))
		}
	})
}

// A published port is never taken for a masqueraded connection.
func TestPrivilegedMasqueradeSparesHostPorts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.TCP(63000, 80), e2etest.UDP(63000, 80)), "web", ":80")
	app := w.AddPod(rt, "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		c, err := e2etest.Dial(app, proto+fam.Suffix, ":63000", e2etest.At(fam.Client(w.Client()), 9000))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Answer.Peer.Port() == 63000 {
			t.Error("the pod's connection took the published port 63000")
		}
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 63000)); got.Server != "web" {
			t.Errorf("the published port is answered by %s", got.Server)
		}
	})
}
