// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// nodeAddrs are the addresses of the node by which a pod may ask for a hostPort: its
// own gateway, and ones that are not.
func nodeAddrs(w *e2etest.World, fam e2etest.Family) []netip.Addr {
	out := []netip.Addr{netip.MustParseAddr(fam.Gateway)}
	for _, c := range w.Clients {
		out = append(out, fam.Node(c))
	}
	return out
}

// A pod reaches a hostPort of its node: its own, a sibling's, and that of a pod
// of another network. Who shares a subnet with the pod that answers is shown by
// the gateway's address, as upstream does; others by their own.
func TestPrivilegedHairpin(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	sibling, stranger := w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "stranger")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		gateway := netip.MustParseAddr(fam.Gateway)
		for _, x := range []struct {
			from         *e2etest.Pod
			seen, direct netip.Addr
		}{{web, gateway, gateway}, {sibling, gateway, fam.Pod(sibling)}, {stranger, gateway, gateway}} { // ipMasq
			for _, addr := range nodeAddrs(w, fam) {
				got := e2etest.Ask(t, x.from, proto, e2etest.At(addr, 8080))
				if got.Server != "web" || got.Peer.Addr() != x.seen {
					t.Errorf("%s to %s: answered by %s, which saw %s; want web, %s", x.from.Name, addr, got.Server, got.Peer, x.seen)
				}
			}
			// The pod itself, from the same source port, is another connection.
			if x.from != web {
				if got := e2etest.Ask(t, x.from, proto, e2etest.At(fam.Pod(web), 80)); got.Peer.Addr() != x.direct {
					t.Errorf("%s to the pod: seen as %s, want %s", x.from.Name, got.Peer, x.direct)
				}
			}
			e2etest.AssertNoAnswer(t, x.from, proto, e2etest.At(gateway, 8081))
		}
	})
}

// With "snat" off no source address is rewritten: siblings get through with
// their own. (A pod cannot reach itself then, no more than with upstream.)
func TestPrivilegedHairpinWithoutSNAT(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Portmap = e2etest.Attributes{"snat": false}
	rt := w.Runtime(n)
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	sibling := w.AddPod(rt, "sibling")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, addr := range nodeAddrs(w, fam) {
			got := e2etest.Ask(t, sibling, proto, e2etest.At(addr, 8080))
			if got.Server != "web" || got.Peer.Addr() != fam.Pod(sibling) {
				t.Errorf("answered by %s, which saw %s; want web, %s", got.Server, got.Peer, fam.Pod(sibling))
			}
		}
		e2etest.AssertNoAnswer(t, web, proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
}

// With "masqAll" the pod sees its gateway as the source of every connection.
func TestPrivilegedMasqAll(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Portmap = e2etest.Attributes{"masqAll": true}
	web := w.AddPod(w.Runtime(n), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	stranger := w.AddPod(w.Runtime(e2etest.Net1()), "stranger")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for name, from := range map[string]e2etest.Place{"client": w.Client(), "stranger": stranger, "web": web, "node": w.Node} {
			got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(w.Client()), 8080))
			if got.Server != "web" || got.Peer.Addr().String() != fam.Gateway {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", name, got.Server, got.Peer, fam.Gateway)
			}
		}
		// The pod's own address is no hostPort.
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(web), 80)); got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("the pod's own address: seen as %s, want %s", got.Peer, fam.Client(w.Client()))
		}
	})
}

// One source port of a pod, used toward the pod that answers and toward its
// hostPort: the stack must not take the two for one connection.
func TestPrivilegedHairpinSamePort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.TCP(8081, 80), e2etest.UDP(8080, 80), e2etest.UDP(8081, 80))
	sibling := w.AddPod(rt, "sibling")
	e2etest.Serve(t, web, "web", ":80")
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			var talks []*e2etest.Talk
			for _, to := range []string{e2etest.At(fam.Pod(web), 80), e2etest.At(fam.Node(w.Client()), 8080), e2etest.At(fam.Node(w.Client()), 8081)} {
				c := e2etest.DialFromSharedPort(t, sibling.NS, proto, e2etest.At(fam.Pod(sibling), 7000), to)
				talks = append(talks, c)
			}
			for range 3 {
				for _, c := range talks {
					if err := c.SendRounds(10); err != nil {
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
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	client := w.AddPod(rt, "client")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		old := w.AddPod(rt, "old"+fam.Suffix, e2etest.UDP(8080, 80))
		e2etest.Serve(t, old, "old", ":80")
		c, err := e2etest.Dial(client, "udp", "", e2etest.At(fam.Node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		next := w.AddPod(rt, "new"+fam.Suffix, e2etest.UDP(8080, 80))
		e2etest.Serve(t, next, "new", ":80")
		if err := c.SendRounds(20); err != nil || c.Answer.Server != "new" {
			t.Errorf("answered by %s: %v; want new", c.Answer.Server, err)
		}
		next.MustDel()
	})
}
