// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Pods on point-to-point links reach each other, the node and the outside, and
// are reached by the node.
func TestPrivilegedPTPReach(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.PTPNetwork())
	a, b := w.AddPod(rt, "a"), w.AddPod(rt, "b")
	for _, p := range []*e2etest.Pod{a, b} {
		e2etest.Serve(t, p, p.Name, ":80")
	}
	e2etest.Serve(t, w.Node, "node", ":9000")
	for _, c := range w.Clients {
		e2etest.Serve(t, c, c.Name, ":9000")
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80)); got.Server != "b" || got.Peer.Addr() != fam.Pod(a) {
			t.Errorf("pod to pod: %s saw %s, want b to see %s", got.Server, got.Peer, fam.Pod(a))
		}
		if got := e2etest.Ask(t, a, proto, e2etest.At(netip.MustParseAddr(fam.Gateway), 9000)); got.Server != "node" || got.Peer.Addr() != fam.Pod(a) {
			t.Errorf("pod to node: %s saw %s, want node to see %s", got.Server, got.Peer, fam.Pod(a))
		}
		if got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(b), 80)); got.Server != "b" || got.Peer.Addr().String() != fam.Gateway {
			t.Errorf("node to pod: %s saw %s, want b to see %s", got.Server, got.Peer, fam.Gateway)
		}
		for _, c := range w.Clients {
			if got := e2etest.Ask(t, b, proto, e2etest.At(fam.Client(c), 9000)); got.Server != c.Name || got.Peer.Addr() != fam.Node(c) {
				t.Errorf("pod to outside: %s saw %s, want %s to see %s", got.Server, got.Peer, c.Name, fam.Node(c))
			}
		}
	})
}

// Without ipMasq the outside sees the pod's own address.
func TestPrivilegedPTPRouted(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.PTPNetwork()
	n.NoMasq, n.Plugins = true, []string{}
	p := w.AddPod(w.Runtime(n), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, p, "app", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Pod(p) {
			t.Errorf("the client saw %s, want %s", got.Peer, fam.Pod(p))
		}
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(p), 80)); got.Server != "app" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("%s saw %s, want app to see the client", got.Server, got.Peer)
		}
	})
}

// A published port of a pod on a point-to-point link.
func TestPrivilegedPTPHostPort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.PTPNetwork())
	app := w.AddPod(rt, "app", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, app, "app", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		node := e2etest.At(fam.Node(w.Client()), 8080)
		if got := e2etest.Ask(t, w.Client(), proto, node); got.Server != "app" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("%s saw %s, want app to see the client's own address", got.Server, got.Peer)
		}
	})
	app.MustDel()
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		e2etest.AssertNoAnswer(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080))
	})
}

// The firewall chain admits the pod where the node drops what it forwards.
func TestPrivilegedPTPFirewall(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.LoadNFT(t, w.Node, "table inet strict {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n")
	p := w.AddPod(w.Runtime(e2etest.PTPNetwork()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000))
	})
}

// CHECK is content, DEL leaves nothing: with the namespace, and without it.
func TestPrivilegedPTPLife(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.PTPNetwork())
	before := w.Warmup(rt, e2etest.TCP(8080, 80))
	p := w.AddPod(rt, "app", e2etest.TCP(8080, 80))
	if err := p.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	p.MustDel()
	w.AssertNothingLeft(before)
	q := w.AddPod(rt, "gone", e2etest.TCP(8080, 80))
	if err := q.Delete(); err != nil {
		t.Fatal(err)
	}
	q.MustDel()
	q.MustDel()
	w.AssertNothingLeft(before)
}
