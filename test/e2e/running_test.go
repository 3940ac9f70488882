// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// dropInvalid is the rule of kube-proxy and many an administrator: it meets
// whatever connection tracking did not see from its beginning on.
const dropInvalid = "table inet admin {\nchain forward {\ntype filter hook forward priority 0;\nct state invalid drop\n}\n}\n"

// Running connections do not notice what happens on the node: pods come and go,
// GC and sync run, the programs are loaded anew with other settings.
func TestPrivilegedRunningConnections(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("dropping invalid %v", strict), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if strict {
				nft(t, w.Node, dropInvalid)
			}
			rt := w.runtime(net0())
			web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
			serve(t, web, "web", ":80")
			serve(t, w.Client(), "client", ":9000")
			talks := openTalks(t, w, web, app)
			goOn := func(after string) {
				t.Helper()
				for name, c := range talks {
					if err := c.rounds(longTalk); err != nil {
						t.Fatalf("%s, after %s: %v", name, after, err)
					}
				}
			}
			goOn("the start")
			other := w.add(rt, "other", tcp(8081, 80))
			goOn("another ADD")
			other.mustDel()
			goOn("another DEL")
			valid := []types.GCAttachment{{ContainerID: "web", IfName: "eth0"}, {ContainerID: "app", IfName: "eth0"}}
			if err := rt.GC(t.Context(), valid); err != nil {
				t.Fatal(err)
			}
			goOn("GC")
			sh(t, w.Node, programs.Path("sluice")+" resync")
			goOn("sync")
			// The node's settings are constants of the programs.
			writeConfig(t, w.Node, `{"admitMark": "0x4000"}`)
			w.add(rt, "third")
			goOn("new programs")
			if !strict {
				// Connection tracking has not seen what took the shortcut.
				writeConfig(t, w.Node, `{"fastPath": "off"}`)
				w.add(rt, "fourth")
				goOn("the end of the fast path")
			}
		})
	}
}

// openTalks starts a conversation on each kind of path.
func openTalks(t *testing.T, w *world, web, app *pod) map[string]*talk {
	t.Helper()
	talks := map[string]*talk{}
	for _, fam := range families() {
		for _, proto := range []string{"tcp", "udp"} {
			for _, x := range []struct {
				name string
				from place
				to   string
			}{
				{"client to hostPort", w.Client(), at(fam.node(w.Client()), 8080)},
				{"client to pod", w.Client(), at(fam.pod(web), 80)},
				{"pod to client", app, at(fam.client(w.Client()), 9000)},
				{"pod to pod", app, at(fam.pod(web), 80)},
				{"node to pod", w.Node, at(fam.pod(web), 80)},
			} {
				c, err := dial(x.from, proto+fam.suffix, "", x.to)
				if err != nil {
					t.Fatalf("%s, %s, %s: %v", x.name, fam.name, proto, err)
				}
				t.Cleanup(func() { _ = c.Close() })
				talks[fmt.Sprintf("%s, %s, %s", x.name, fam.name, proto)] = c
			}
		}
	}
	return talks
}

// The node and its pods reach each other by every address of the node.
func TestPrivilegedPodAndNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app", tcp(8080, 80))
	serve(t, p, "app", ":80")
	for _, fam := range families() {
		// A socket of its own for each: an unconnected UDP socket answers from
		// whichever address lies nearest.
		for _, a := range []netip.Addr{netip.MustParseAddr(fam.gw), fam.node(w.Client())} {
			serveFamily(t, w.Node, fam.suffix, "node", at(a, 7000))
		}
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, to := range []netip.Addr{netip.MustParseAddr(fam.gw), fam.node(w.Client())} {
			got := ask(t, p, proto, at(to, 7000))
			if got.name != "node" || got.peer.Addr() != fam.pod(p) {
				t.Errorf("%s: %s saw %s, want node to see %s", to, got.name, got.peer, fam.pod(p))
			}
		}
		got := ask(t, w.Node, proto, at(fam.pod(p), 80))
		if got.name != "app" || got.peer.Addr() != netip.MustParseAddr(fam.gw) {
			t.Errorf("%s saw %s, want app to see %s", got.name, got.peer, fam.gw)
		}
	})
}

// Pods of different networks of a node reach each other, and are masqueraded as toward
// the outside: each sees the node's address in its own network. A policy that one of them has changes nothing of that.
func TestPrivilegedAcrossNetworks(t *testing.T) {
	t.Parallel()
	for name, firewall := range map[string]attributes{
		"open": nil, "policy": {"ingressPolicy": "isolated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			one := net0()
			one.firewall = firewall
			acrossNetworks(t, w.add(w.runtime(one), "a"), w.add(w.runtime(net1()), "b"))
		})
	}
}

func acrossNetworks(t *testing.T, a, b *pod) {
	t.Helper()
	serve(t, a, "a", ":80")
	serve(t, b, "b", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, x := range []struct {
			from, to *pod
			seen     string
		}{
			{a, b, map[string]string{"4": "10.2.0.1", "6": "fd00:10:2::1"}[fam.suffix]},
			{b, a, fam.gw},
		} {
			c, err := dial(x.from, proto+fam.suffix, "", at(fam.pod(x.to), 80))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.answer.name != x.to.Name || c.answer.peer.Addr().String() != x.seen {
				t.Errorf("%s saw %s, want %s to see %s", c.answer.name, c.answer.peer, x.to.Name, x.seen)
			}
			if err := c.rounds(longTalk); err != nil {
				t.Error(err)
			}
		}
	})
	eachFamily(t, func(t *testing.T, fam family) {
		for seq := range uint16(5) {
			if err := errors.Join(ping(a, fam, fam.pod(b), 77, seq), ping(b, fam, fam.pod(a), 77, seq)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Where one of the networks is not masqueraded, its pods show themselves, and their
// peers' answers come from themselves too.
func TestPrivilegedAcrossNetworksHalf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := net1()
	open.noMasq = true
	a, b := w.add(w.runtime(net0()), "a"), w.add(w.runtime(open), "b")
	serve(t, a, "a", ":80")
	serve(t, b, "b", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		c, err := dial(b, proto+fam.suffix, "", at(fam.pod(a), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.answer.peer.Addr() != fam.pod(b) {
			t.Errorf("a saw %s, want %s", c.answer.peer, fam.pod(b))
		}
		if err := c.rounds(longTalk); err != nil {
			t.Error(err)
		}
		if got := ask(t, a, proto, at(fam.pod(b), 80)); got.peer.Addr() == fam.pod(a) {
			t.Errorf("b saw %s, want the node", got.peer)
		}
	})
}

// Connections that were closed are forgotten soon, and a new one with the same
// ports works, also where invalid packets are dropped.
func TestPrivilegedManyShortConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nft(t, w.Node, dropInvalid)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		for i := range 200 {
			for _, x := range []struct {
				from place
				to   string
			}{{w.Client(), at(fam.node(w.Client()), 8080)}, {app, at(fam.client(w.Client()), 9000)}} {
				c, err := dial(x.from, "tcp"+fam.suffix, "", x.to)
				if err != nil {
					t.Fatalf("%s, connection %d: %v", x.to, i, err)
				}
				if err := c.say("once"); err != nil {
					t.Fatalf("%s, connection %d: %v", x.to, i, err)
				}
				_ = c.Close()
			}
		}
	})
}
