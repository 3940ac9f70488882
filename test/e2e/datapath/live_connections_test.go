// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// dropInvalidRules is the rule of kube-proxy and many an administrator: it meets
// whatever connection tracking did not see from its beginning on.
const dropInvalidRules = "table inet admin {\nchain forward {\ntype filter hook forward priority 0;\nct state invalid drop\n}\n}\n"

// Running connections do not notice what happens on the node: pods come and go,
// GC and sync run, the programs are loaded anew with other settings.
func TestPrivilegedRunningConnections(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("dropping invalid %v", strict), func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			if strict {
				e2etest.LoadNFT(t, w.Node, dropInvalidRules)
			}
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			talks := openTalks(t, w, web, app)
			goOn := func(after string) {
				t.Helper()
				for name, c := range talks {
					if err := c.SendRounds(e2etest.LongTalk); err != nil {
						t.Fatalf("%s, after %s: %v", name, after, err)
					}
				}
			}
			goOn("the start")
			other := w.AddPod(rt, "other", e2etest.TCP(8081, 80))
			goOn("another ADD")
			other.MustDel()
			goOn("another DEL")
			valid := []types.GCAttachment{{ContainerID: "web", IfName: "eth0"}, {ContainerID: "app", IfName: "eth0"}}
			if err := rt.GC(t.Context(), valid); err != nil {
				t.Fatal(err)
			}
			goOn("GC")
			e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
			goOn("sync")
			// The node's settings are constants of the programs.
			w.Configure(`{"firewallMark": "0x4000"}`)
			w.AddPod(rt, "third")
			goOn("new programs")
			// Connection tracking has not seen what took the fast path, but is liberal.
			w.Configure(`{"fastPath": "off"}`)
			w.AddPod(rt, "fourth")
			goOn("the end of the fast path")
		})
	}
}

// openTalks starts a conversation on each kind of path.
func openTalks(t *testing.T, w *e2etest.World, web, app *e2etest.Pod) map[string]*e2etest.Talk {
	t.Helper()
	talks := map[string]*e2etest.Talk{}
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			for _, x := range []struct {
				name string
				from e2etest.Place
				to   string
			}{
				{"client to hostPort", w.Client(), e2etest.At(fam.Node(w.Client()), 8080)},
				{"client to pod", w.Client(), e2etest.At(fam.Pod(web), 80)},
				{"pod to client", app, e2etest.At(fam.Client(w.Client()), 9000)},
				{"pod to pod", app, e2etest.At(fam.Pod(web), 80)},
				{"node to pod", w.Node, e2etest.At(fam.Pod(web), 80)},
			} {
				c, err := e2etest.Dial(x.from, proto+fam.Suffix, "", x.to)
				if err != nil {
					t.Fatalf("%s, %s, %s: %v", x.name, fam.Name, proto, err)
				}
				t.Cleanup(func() { _ = c.Close() })
				talks[fmt.Sprintf("%s, %s, %s", x.name, fam.Name, proto)] = c
			}
		}
	}
	return talks
}

// The node and its pods reach each other by every address of the node.
func TestPrivilegedPodAndNode(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app", e2etest.TCP(8080, 80))
	e2etest.Serve(t, p, "app", ":80")
	for _, fam := range e2etest.Families() {
		// A socket of its own for each: an unconnected UDP socket answers from
		// whichever address lies nearest.
		for _, a := range []netip.Addr{netip.MustParseAddr(fam.Gateway), fam.Node(w.Client())} {
			e2etest.ServeFamily(t, w.Node, fam.Suffix, "node", e2etest.At(a, 7000))
		}
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, to := range []netip.Addr{netip.MustParseAddr(fam.Gateway), fam.Node(w.Client())} {
			got := e2etest.Ask(t, p, proto, e2etest.At(to, 7000))
			if got.Server != "node" || got.Peer.Addr() != fam.Pod(p) {
				t.Errorf("%s: %s saw %s, want node to see %s", to, got.Server, got.Peer, fam.Pod(p))
			}
		}
		got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(p), 80))
		if got.Server != "app" || got.Peer.Addr() != netip.MustParseAddr(fam.Gateway) {
			t.Errorf("%s saw %s, want app to see %s", got.Server, got.Peer, fam.Gateway)
		}
	})
}

// Connections that were closed are forgotten soon, and a new one with the same
// ports works, also where invalid packets are dropped.
func TestPrivilegedManyShortConnections(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.LoadNFT(t, w.Node, dropInvalidRules)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for i := range 200 {
			for _, x := range []struct {
				from e2etest.Place
				to   string
			}{{w.Client(), e2etest.At(fam.Node(w.Client()), 8080)}, {app, e2etest.At(fam.Client(w.Client()), 9000)}} {
				c, err := e2etest.Dial(x.from, "tcp"+fam.Suffix, "", x.to)
				if err != nil {
					t.Fatalf("%s, connection %d: %v", x.to, i, err)
				}
				if err := c.Send("once"); err != nil {
					t.Fatalf("%s, connection %d: %v", x.to, i, err)
				}
				_ = c.Close()
			}
		}
	})
}
