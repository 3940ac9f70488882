// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"os"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A pod reaches the outside with the node's address on the way it takes.
func TestPrivilegedMasquerade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	p := w.add(w.runtime(net0()), "app")
	for _, c := range w.Clients {
		serve(t, c, c.Name, ":9000")
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, c := range w.Clients {
			got := ask(t, p, proto, at(fam.client(c), 9000))
			if got.name != c.Name || got.peer.Addr() != fam.node(c) {
				t.Errorf("%s saw %s, want %s to see %s", got.name, got.peer, c.Name, fam.node(c))
			}
		}
	})
}

// Two pods that use one source port toward one server stay apart.
func TestPrivilegedMasqueradeSamePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	pods := []*pod{w.add(rt, "a"), w.add(rt, "b"), w.add(rt, "c")}
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		seen := map[netip.AddrPort]string{}
		var talks []*talk
		for _, p := range pods {
			c, err := dial(p, proto+fam.suffix, ":40000", at(fam.client(w.Client()), 9000))
			if err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			defer c.Close()
			talks = append(talks, c)
			if other := seen[c.answer.peer]; other != "" || c.answer.peer.Addr() != fam.node(w.Client()) {
				t.Errorf("%s is seen as %s, like %q; want a port of its own at %s", p.Name, c.answer.peer, other, fam.node(w.Client()))
			}
			seen[c.answer.peer] = p.Name
		}
		for i := range longTalk {
			for j, c := range talks {
				if err := c.say("round"); err != nil {
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
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		server := at(fam.client(w.Client()), 9000)
		own, err := dial(w.Node, proto+fam.suffix, ":62000", server)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		pods, err := dial(p, proto+fam.suffix, ":62000", server)
		if err != nil {
			t.Fatal(err)
		}
		defer pods.Close()
		if pods.answer.peer == own.answer.peer {
			t.Errorf("pod and node are both seen as %s", own.answer.peer)
		}
		for range longTalk {
			if err := own.say("node"); err != nil {
				t.Fatalf("the node's connection: %v", err)
			}
			if err := pods.say("pod"); err != nil {
				t.Fatalf("the pod's connection: %v", err)
			}
		}
	})
}

// Nor that of a socket on which the node listens, or takes datagrams: those who ask there are answered by the node.
func TestPrivilegedMasqueradeSparesListeners(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":62000")
	serve(t, w.Node, "node", ":62001")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		pods, err := dial(p, proto+fam.suffix, ":62001", at(fam.client(w.Client()), 62000))
		if err != nil {
			t.Fatal(err)
		}
		defer pods.Close()
		if pods.answer.peer.Port() == 62001 {
			t.Error("the pod's connection took the port that the node listens on")
		}
		if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 62001)); got.name != "node" {
			t.Errorf("answered by %s, want node", got.name)
		}
		if err := pods.rounds(longTalk); err != nil {
			t.Errorf("the pod's connection: %v", err)
		}
	})
}

// Who connects to the pod's own address is answered from it.
func TestPrivilegedInboundIsNotMasqueraded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "web")
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, w.Client(), proto, at(fam.pod(p), 80))
		if got.name != "web" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("%s saw %s, want web to see %s", got.name, got.peer, fam.client(w.Client()))
		}
	})
}

// Pods of one subnet see each other's own addresses.
func TestPrivilegedOwnSubnetIsNotMasqueraded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	a, b := w.add(rt, "a"), w.add(rt, "b")
	serve(t, b, "b", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, a, proto, at(fam.pod(b), 80))
		if got.name != "b" || got.peer.Addr() != fam.pod(a) {
			t.Errorf("%s saw %s, want b to see %s", got.name, got.peer, fam.pod(a))
		}
	})
}

// A part of the subnet may lie behind an uplink, as it does when nodes share
// one: it sees the pod's own address too.
func TestPrivilegedOwnSubnetElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app")
	eachFamily(t, func(t *testing.T, fam family) {
		far := map[string]string{"4": "10.1.200.1", "6": "fd00:10:1::c8:1"}[fam.suffix]
		length := map[string]string{"4": "/32", "6": "/128"}[fam.suffix]
		sh(t, w.Client(), "ip addr add "+far+length+" dev lo"+nodad(fam.suffix == "6"))
		serveFamily(t, w.Client(), fam.suffix, "far", at(netip.MustParseAddr(far), 9000))
		sh(t, w.Node, "ip route add "+far+length+" via "+fam.client(w.Client()).String())
		sh(t, p, "ip route add "+far+length+" via "+fam.gw)
		for _, proto := range []string{"tcp", "udp"} {
			got := ask(t, p, proto, at(netip.MustParseAddr(far), 9000))
			if got.name != "far" || got.peer.Addr() != fam.pod(p) {
				t.Errorf("%s: %s saw %s, want far to see %s", proto, got.name, got.peer, fam.pod(p))
			}
		}
	})
}

// Without ipMasq the outside sees the pod.
func TestPrivilegedNoMasquerade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(network{noMasq: true}), "app")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, p, proto, at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.pod(p) {
			t.Errorf("the client saw %s, want %s", got.peer, fam.pod(p))
		}
	})
}

// writeConfig gives the node an /etc/sluice/config.json.
func writeConfig(t testing.TB, n *netlab.Node, text string) {
	t.Helper()
	err := n.Do(func() error { return os.WriteFile("/etc/sluice/config.json", []byte(text), 0o644) })
	if err != nil {
		t.Fatal(err)
	}
}

// The operator's exceptions keep the pod's address, everything else does not.
func TestPrivilegedNonMasqueradeCIDRs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	writeConfig(t, w.Node, `{"nonMasqueradeCIDRs": ["192.0.2.0/24", "2001:db8:1::/64"]}`)
	p := w.add(w.runtime(net0()), "app")
	for _, c := range w.Clients {
		serve(t, c, c.Name, ":9000")
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, p, proto, at(fam.client(w.Clients[0]), 9000)); got.peer.Addr() != fam.pod(p) {
			t.Errorf("inside the exception: the client saw %s, want %s", got.peer, fam.pod(p))
		}
		if got := ask(t, p, proto, at(fam.client(w.Clients[1]), 9000)); got.peer.Addr() != fam.node(w.Clients[1]) {
			t.Errorf("outside of it: the client saw %s, want %s", got.peer, fam.node(w.Clients[1]))
		}
	})
}

// A published port is never taken for a masqueraded connection.
func TestPrivilegedMasqueradeSparesHostPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	serve(t, w.add(rt, "web", tcp(63000, 80), udp(63000, 80)), "web", ":80")
	app := w.add(rt, "app")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		c, err := dial(app, proto+fam.suffix, ":63000", at(fam.client(w.Client()), 9000))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.answer.peer.Port() == 63000 {
			t.Error("the pod's connection took the published port 63000")
		}
		if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 63000)); got.name != "web" {
			t.Errorf("the published port is answered by %s", got.name)
		}
	})
}
