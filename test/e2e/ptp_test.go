// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// onPTP is a dual-stack network of point-to-point links.
func onPTP() network { return network{main: "ptp"} }

// Pods on point-to-point links reach each other, the node and the outside, and
// are reached by the node.
func TestPrivilegedPTPReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(onPTP())
	a, b := w.add(rt, "a"), w.add(rt, "b")
	for _, p := range []*pod{a, b} {
		serve(t, p, p.Name, ":80")
	}
	serve(t, w.Node, "node", ":9000")
	for _, c := range w.Clients {
		serve(t, c, c.Name, ":9000")
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, a, proto, at(fam.pod(b), 80)); got.name != "b" || got.peer.Addr() != fam.pod(a) {
			t.Errorf("pod to pod: %s saw %s, want b to see %s", got.name, got.peer, fam.pod(a))
		}
		if got := ask(t, a, proto, at(netip.MustParseAddr(fam.gw), 9000)); got.name != "node" || got.peer.Addr() != fam.pod(a) {
			t.Errorf("pod to node: %s saw %s, want node to see %s", got.name, got.peer, fam.pod(a))
		}
		if got := ask(t, w.Node, proto, at(fam.pod(b), 80)); got.name != "b" || got.peer.Addr().String() != fam.gw {
			t.Errorf("node to pod: %s saw %s, want b to see %s", got.name, got.peer, fam.gw)
		}
		for _, c := range w.Clients {
			if got := ask(t, b, proto, at(fam.client(c), 9000)); got.name != c.Name || got.peer.Addr() != fam.node(c) {
				t.Errorf("pod to outside: %s saw %s, want %s to see %s", got.name, got.peer, c.Name, fam.node(c))
			}
		}
	})
}

// Without ipMasq the outside sees the pod's own address.
func TestPrivilegedPTPRouted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := onPTP()
	n.noMasq, n.plugins = true, []string{}
	p := w.add(w.runtime(n), "app")
	serve(t, w.Client(), "client", ":9000")
	serve(t, p, "app", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, p, proto, at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.pod(p) {
			t.Errorf("the client saw %s, want %s", got.peer, fam.pod(p))
		}
		if got := ask(t, w.Client(), proto, at(fam.pod(p), 80)); got.name != "app" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("%s saw %s, want app to see the client", got.name, got.peer)
		}
	})
}

// A published port of a pod on a point-to-point link.
func TestPrivilegedPTPHostPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(onPTP())
	app := w.add(rt, "app", tcp(8080, 80), udp(8080, 80))
	serve(t, app, "app", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		node := at(fam.node(w.Client()), 8080)
		if got := ask(t, w.Client(), proto, node); got.name != "app" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("%s saw %s, want app to see the client's own address", got.name, got.peer)
		}
	})
	app.mustDel()
	eachFamily(t, func(t *testing.T, fam family) {
		refused(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080))
	})
}

// The firewall chain admits the pod where the node drops what it forwards.
func TestPrivilegedPTPFirewall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nft(t, w.Node, "table inet strict {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n")
	p := w.add(w.runtime(onPTP()), "app")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, p, proto, at(fam.client(w.Client()), 9000))
	})
}

// CHECK is content, DEL leaves nothing: with the namespace, and without it.
func TestPrivilegedPTPLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(onPTP())
	before := w.settled(rt, tcp(8080, 80))
	p := w.add(rt, "app", tcp(8080, 80))
	if err := p.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	p.mustDel()
	w.assertNothingLeft(before)
	q := w.add(rt, "gone", tcp(8080, 80))
	if err := q.Delete(); err != nil {
		t.Fatal(err)
	}
	q.mustDel()
	q.mustDel()
	w.assertNothingLeft(before)
}

// Both directions are limited, by the pod's address and through its hostPort,
// with the whole chain and its masquerade.
func TestPrivilegedPTPBandwidth(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"edt", "tbf"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "edt" {
				require.Qdisc(t, "fq")
			}
			w := newWorld(t)
			n := onPTP()
			n.plugins = []string{"portmap", "firewall", "bandwidth"}
			n.bandwidth = merged(attributes{"backend": backend}, merged(limits("ingress", 8*megabit, megabit/5), limits("egress", 8*megabit, megabit/5)))
			rt := w.runtime(n)
			before := w.settled(rt, tcp(8090, 90))
			p := w.add(rt, "app", tcp(8090, 90))
			drain(t, p)
			drain(t, w.Client())
			mustCheck(t, p)
			eachFamily(t, func(t *testing.T, fam family) {
				for name, way := range map[string]struct {
					from place
					to   string
				}{
					"the hostPort":   {w.Client(), at(fam.node(w.Client()), 8090)},
					"from the node":  {w.Node, at(fam.pod(p), 90)},
					"to the outside": {p, at(fam.client(w.Client()), 90)},
				} {
					got, err := rate(way.from, "tcp"+fam.suffix, way.to)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					} else if got > 10*megabit {
						t.Errorf("%s: %.1f Mbit/s of 8", name, got/megabit)
					}
				}
			})
			p.mustDel()
			w.assertNothingLeft(before)
		})
	}
}
