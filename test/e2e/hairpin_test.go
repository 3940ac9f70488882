// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
)

// nodeAddrs are the addresses of the node by which a pod may ask for a hostPort: its
// own gateway, and ones that are not.
func (w *world) nodeAddrs(fam family) []netip.Addr {
	out := []netip.Addr{netip.MustParseAddr(fam.gw)}
	for _, c := range w.Clients {
		out = append(out, fam.node(c))
	}
	return out
}

// A pod reaches a hostPort of its node: its own, a sibling's, and that of a pod
// of another network. Who shares a subnet with the pod that answers is shown by
// the gateway's address, as the reference does; others by their own.
func TestPrivilegedHairpin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(net0())
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	sibling, stranger := w.add(rt, "sibling"), w.add(w.runtime(net1()), "stranger")
	serve(t, web, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		gateway := netip.MustParseAddr(fam.gw)
		for _, x := range []struct {
			from         *pod
			seen, direct netip.Addr
		}{{web, gateway, gateway}, {sibling, gateway, fam.pod(sibling)}, {stranger, gateway, gateway}} { // ipMasq
			for _, addr := range w.nodeAddrs(fam) {
				got := ask(t, x.from, proto, at(addr, 8080))
				if got.name != "web" || got.peer.Addr() != x.seen {
					t.Errorf("%s to %s: answered by %s, which saw %s; want web, %s", x.from.Name, addr, got.name, got.peer, x.seen)
				}
			}
			// The pod itself, from the same source port, is another connection.
			if x.from != web {
				if got := ask(t, x.from, proto, at(fam.pod(web), 80)); got.peer.Addr() != x.direct {
					t.Errorf("%s to the pod: seen as %s, want %s", x.from.Name, got.peer, x.direct)
				}
			}
			refused(t, x.from, proto, at(gateway, 8081))
		}
	})
}

// With "snat" off nobody's address is exchanged: siblings get through with
// their own. (A pod cannot reach itself then, no more than with the reference.)
func TestPrivilegedHairpinWithoutSNAT(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := net0()
	n.portmap = attributes{"snat": false}
	rt := w.runtime(n)
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	sibling := w.add(rt, "sibling")
	serve(t, web, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, addr := range w.nodeAddrs(fam) {
			got := ask(t, sibling, proto, at(addr, 8080))
			if got.name != "web" || got.peer.Addr() != fam.pod(sibling) {
				t.Errorf("answered by %s, which saw %s; want web, %s", got.name, got.peer, fam.pod(sibling))
			}
		}
		refused(t, web, proto, at(fam.node(w.Client()), 8080))
	})
}

// With "masqAll" the pod sees its gateway, whoever asks.
func TestPrivilegedMasqAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := net0()
	n.portmap = attributes{"masqAll": true}
	web := w.add(w.runtime(n), "web", tcp(8080, 80), udp(8080, 80))
	stranger := w.add(w.runtime(net1()), "stranger")
	serve(t, web, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for name, from := range map[string]place{"client": w.Client(), "stranger": stranger, "web": web, "node": w.Node} {
			got := ask(t, from, proto, at(fam.node(w.Client()), 8080))
			if got.name != "web" || got.peer.Addr().String() != fam.gw {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", name, got.name, got.peer, fam.gw)
			}
		}
		// The pod's own address is no hostPort.
		if got := ask(t, w.Client(), proto, at(fam.pod(web), 80)); got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("the pod's own address: seen as %s, want %s", got.peer, fam.client(w.Client()))
		}
	})
}

// One source port of a pod, used toward the pod that answers and toward its
// hostPort: the stack must not take the two for one connection.
func TestPrivilegedHairpinSamePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web := w.add(rt, "web", tcp(8080, 80), tcp(8081, 80), udp(8080, 80), udp(8081, 80))
	sibling := w.add(rt, "sibling")
	serve(t, web, "web", ":80")
	for _, fam := range families() {
		for _, proto := range []string{"tcp", "udp"} {
			var talks []*talk
			for _, to := range []string{at(fam.pod(web), 80), at(fam.node(w.Client()), 8080), at(fam.node(w.Client()), 8081)} {
				c := reuse(t, sibling.NS, proto, at(fam.pod(sibling), 7000), to)
				talks = append(talks, c)
			}
			for range 3 {
				for _, c := range talks {
					if err := c.rounds(10); err != nil {
						t.Errorf("%s %s: %v", proto, c.RemoteAddr(), err)
					}
				}
			}
		}
	}
}

// A hostPort that goes to another pod takes the hairpin with it, also for a
// sender that never pauses.
func TestPrivilegedHairpinTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	client := w.add(rt, "client")
	eachFamily(t, func(t *testing.T, fam family) {
		old := w.add(rt, "old"+fam.suffix, udp(8080, 80))
		serve(t, old, "old", ":80")
		c, err := dial(client, "udp", "", at(fam.node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		next := w.add(rt, "new"+fam.suffix, udp(8080, 80))
		serve(t, next, "new", ":80")
		if err := c.rounds(20); err != nil || c.answer.name != "new" {
			t.Errorf("answered by %s: %v; want new", c.answer.name, err)
		}
		next.mustDel()
	})
}
