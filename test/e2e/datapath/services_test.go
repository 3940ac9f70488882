// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// A Service whose backend is outside the node: another netfilter user
// translates what the pod sends, and Sluice masquerades it.
func TestPrivilegedServiceOutside(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	for _, fam := range e2etest.Families() {
		e2etest.TranslateVIP(t, w.Node, fam, e2etest.VirtualIP(fam), fam.Client(w.Client()), 9000)
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, p, proto, e2etest.At(e2etest.VirtualIP(fam), 80))
		if got.Server != "client" || got.Peer.Addr() != fam.Node(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want client, %s", got.Server, got.Peer, fam.Node(w.Client()))
		}
		// The real address still works beside it, from the same source port too.
		c, err := e2etest.Dial(p, proto+fam.Suffix, ":41000", e2etest.At(e2etest.VirtualIP(fam), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SendRounds(e2etest.LongTalk); err != nil {
			t.Error(err)
		}
		e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000))
	})
}

// A Service whose backend is a pod of another network on the node. "sluice observe" names the pod behind it.
func TestPrivilegedServiceInside(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	web := w.AddPod(w.Runtime(e2etest.Net1()), "web")
	e2etest.Serve(t, web, "web", ":8000")
	for _, fam := range e2etest.Families() {
		e2etest.TranslateVIP(t, w.Node, fam, e2etest.VirtualIP(fam), fam.Pod(web), 8000)
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, app, proto, e2etest.At(e2etest.VirtualIP(fam), 80)); got.Server != "web" {
			t.Errorf("a pod is answered by %s, want web", got.Server)
		}
		if got := e2etest.Ask(t, w.Node, proto, e2etest.At(e2etest.VirtualIP(fam), 80)); got.Server != "web" {
			t.Errorf("the node is answered by %s, want web", got.Server)
		}
		vip, backend := netip.AddrPortFrom(e2etest.VirtualIP(fam), 80), netip.AddrPortFrom(fam.Pod(web), 8000)
		found := false
		for line := range strings.Lines(e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" observe --all -o json --protocol "+proto[:3]+" --ip "+vip.Addr().String())) {
			var e struct {
				Source, Destination, Backend netip.AddrPort
				State                        string
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Source.Addr() != fam.Pod(app) || e.Destination != vip || e.Backend != backend {
				t.Errorf("observed %+v, want %s and %s", e, vip, backend)
			}
			if e.State == "unreplied" { // known from netfilter's table: the datapath does not see the answer under this tuple
				t.Errorf("%s: %s has answered, and is shown as unreplied", proto, vip)
			}
			found = true
		}
		if !found {
			t.Errorf("%s: no connection to %s is observed", proto, vip)
		}
	})
}

// The same by iptables, as kube-proxy's first mode writes it, with a backend on the client's own bridge too: every answer comes from the
// virtual address, though the two could talk directly.
func TestPrivilegedServiceIPTables(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	app, sibling, web := w.AddPod(rt, "app"), w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "web")
	backends := []*e2etest.Pod{sibling, web}
	for _, b := range backends {
		e2etest.Serve(t, b, b.Name, ":8000")
	}
	for _, fam := range e2etest.Families() {
		ipt := map[string]string{"4": "iptables", "6": "ip6tables"}[fam.Suffix]
		for i, b := range backends {
			for _, proto := range []string{"tcp", "udp"} {
				for _, chain := range []string{"PREROUTING", "OUTPUT"} {
					e2etest.MustRun(t, w.Node, fmt.Sprintf("%s -w -t nat -A %s -d %s -p %s --dport %d -j DNAT --to-destination %s",
						ipt, chain, e2etest.VirtualIP(fam), proto, 80+i, e2etest.At(fam.Pod(b), 8000)))
				}
				// A backend beside the client would answer it directly: kube-proxy masquerades what hairpins through the bridge.
				e2etest.MustRun(t, w.Node, fmt.Sprintf("%s -w -t nat -A POSTROUTING -s %s -d %s -p %s -j MASQUERADE", ipt, fam.Pod(app), fam.Pod(sibling), proto))
			}
		}
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for i, b := range backends {
			for _, from := range []e2etest.Place{app, w.Node} {
				if got := e2etest.Ask(t, from, proto, e2etest.At(e2etest.VirtualIP(fam), uint16(80+i))); got.Server != b.Name {
					t.Errorf("answered by %s, want %s", got.Server, b.Name)
				}
			}
		}
	})
}

// A Service that clients reach through the node's address (a NodePort).
func TestPrivilegedServiceNodePort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 8000))
	e2etest.Serve(t, web, "web", ":8000")
	for _, fam := range e2etest.Families() {
		e2etest.TranslateVIP(t, w.Node, fam, fam.Node(w.Client()), fam.Pod(web), 8000)
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 80))
		if got.Server != "web" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want web, %s", got.Server, got.Peer, fam.Client(w.Client()))
		}
	})
}

// A filter rule set after a connection was learned decides about new ones at
// once, since their first packets take the slow path.
func TestPrivilegedFirewallRuleBindsNewConnections(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
	rules := "table inet admin {\nchain forward {\ntype filter hook forward priority -10;\niifname eth0 oifname cni0 reject\n}\n}\n"
	e2etest.LoadNFT(t, w.Node, rules)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
}

// What a rule drops stays dropped however often it is sent: no packet after the
// first one finds a way around.
func TestPrivilegedDroppedStaysDropped(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.LoadNFT(t, w.Node, "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\n}\n}\n")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		tests := []struct {
			name     string
			from, at e2etest.Place
			to       netip.AddrPort
			port     uint16
		}{
			{"pod to client", app, w.Client(), netip.AddrPortFrom(fam.Client(w.Client()), 9000), 9000},
			{"client to hostPort", w.Client(), web, netip.AddrPortFrom(fam.Node(w.Client()), 8080), 80},
			{"client to pod", w.Client(), web, netip.AddrPortFrom(fam.Pod(web), 80), 80},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				l, err := tt.at.ListenPacket("udp"+fam.Suffix, fmt.Sprintf(":%d", tt.port))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				c, err := tt.from.DialFrom(t.Context(), "udp"+fam.Suffix, ":0", tt.to.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				for range e2etest.LongTalk {
					if _, err := c.Write([]byte("knock")); err != nil {
						t.Fatal(err)
					}
				}
				if err := l.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				if n, from, err := l.ReadFrom(make([]byte, 64)); err == nil {
					t.Errorf("%d bytes from %s came through", n, from)
				}
				// TCP repeats its SYN after 1 and 3 seconds.
				if c, err := e2etest.DialWithin(1200*time.Millisecond, tt.from, "tcp"+fam.Suffix, "", tt.to.String()); err == nil {
					c.Close()
					t.Error("a TCP connection came through")
				}
			})
		}
	})
}

// With a FORWARD policy of DROP, the firewall plugin's admission lets what the
// pod opens through, as upstream's accept rules do.
func TestPrivilegedFirewallAdmitsThroughDropPolicy(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rules := "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n"
	w.Configure(`{"firewallMark": "0x1000"}`)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.LoadNFT(t, w.Node, rules)
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000))
	})
}

// A third party masquerades what leaves the node: it does so once. Without it Sluice masquerades again.
func TestPrivilegedMasqueradedByAnother(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.LoadNFT(t, w.Node, "table inet other {\nchain post {\ntype nat hook postrouting priority 100;\noifname eth0 masquerade\n}\n}\n")
	asks := func() {
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, app, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("the client saw %s, want %s", got.Peer, fam.Node(w.Client()))
			}
		})
	}
	asks()
	e2etest.MustRun(t, w.Node, "nft delete table inet other")
	asks()
	if c := w.Counters(t, app); c.TxFast == 0 || c.RxFast == 0 {
		t.Errorf("%+v: nothing is learned without him", c)
	}
}

// Strict reverse path filtering on every device (rp_filter 1) drops nothing of ours: no packet has a source that the routes contradict.
func TestPrivilegedReversePathFilter(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.MustRun(t, w.Node, "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1")
	rt := w.Runtime(e2etest.Net0())
	web, sibling, other := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	v4 := e2etest.Families()[0]
	for _, proto := range []string{"tcp", "udp"} {
		for _, x := range pathsInside(w, v4, web, sibling, other) {
			e2etest.Ask(t, x.From, proto, x.To)
		}
		e2etest.Ask(t, w.Client(), proto, e2etest.At(v4.Node(w.Client()), 8080))
		e2etest.Ask(t, w.Client(), proto, e2etest.At(v4.Pod(web), 80))
		e2etest.Ask(t, sibling, proto, e2etest.At(v4.Client(w.Client()), 9000))
		e2etest.Ask(t, w.Node, proto, e2etest.At(v4.Node(w.Client()), 8080))
	}
}
