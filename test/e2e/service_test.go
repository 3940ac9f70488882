// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// virtualIP returns a Service address of a family, routed nowhere.
func virtualIP(fam family) netip.Addr {
	if fam.suffix == "4" {
		return netip.MustParseAddr("10.96.0.10")
	}
	return netip.MustParseAddr("fd00:96::10")
}

// nft loads netfilter rules in a namespace.
func nft(t testing.TB, n interface{ Do(func() error) error }, rules string) {
	t.Helper()
	err := n.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// translate does what kube-proxy does for a Service: connections to vip:80,
// from pods and from the node, go to backend:port.
func translate(t testing.TB, n *netlab.Node, fam family, vip, backend netip.Addr, port uint16) {
	t.Helper()
	ip := map[string]string{"4": "ip", "6": "ip6"}[fam.suffix]
	var rules strings.Builder
	fmt.Fprintf(&rules, "table %s proxy {\n", ip)
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&rules, "chain %s {\ntype nat hook %s priority -100;\n", hook, hook)
		for _, proto := range []string{"tcp", "udp"} {
			fmt.Fprintf(&rules, "%s daddr %s %s dport 80 dnat to %s\n", ip, vip, proto, at(backend, port))
		}
		rules.WriteString("}\n")
	}
	rules.WriteString("}\n")
	nft(t, n, rules.String())
}

// A Service whose backend is outside the node: another netfilter user
// translates what the pod sends, and Sluice masquerades it.
func TestPrivilegedServiceOutside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":9000")
	for _, fam := range families() {
		translate(t, w.Node, fam, virtualIP(fam), fam.client(w.Client()), 9000)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, p, proto, at(virtualIP(fam), 80))
		if got.name != "client" || got.peer.Addr() != fam.node(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want client, %s", got.name, got.peer, fam.node(w.Client()))
		}
		// The real address still works beside it, from the same source port too.
		c, err := dial(p, proto+fam.suffix, ":41000", at(virtualIP(fam), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.rounds(longTalk); err != nil {
			t.Error(err)
		}
		ask(t, p, proto, at(fam.client(w.Client()), 9000))
	})
}

// A Service whose backend is a pod of another network on the node.
func TestPrivilegedServiceInside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := w.add(w.runtime(net0()), "app")
	web := w.add(w.runtime(net1()), "web")
	serve(t, web, "web", ":8000")
	for _, fam := range families() {
		translate(t, w.Node, fam, virtualIP(fam), fam.pod(web), 8000)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, app, proto, at(virtualIP(fam), 80)); got.name != "web" {
			t.Errorf("a pod is answered by %s, want web", got.name)
		}
		if got := ask(t, w.Node, proto, at(virtualIP(fam), 80)); got.name != "web" {
			t.Errorf("the node is answered by %s, want web", got.name)
		}
	})
}

// The same by iptables, as kube-proxy's first mode writes it, with a backend on the client's own bridge too: every answer comes from the
// virtual address, though the two could talk directly.
func TestPrivilegedServiceIPTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	app, sibling, web := w.add(rt, "app"), w.add(rt, "sibling"), w.add(w.runtime(net1()), "web")
	backends := []*pod{sibling, web}
	for _, b := range backends {
		serve(t, b, b.Name, ":8000")
	}
	for _, fam := range families() {
		ipt := map[string]string{"4": "iptables", "6": "ip6tables"}[fam.suffix]
		for i, b := range backends {
			for _, proto := range []string{"tcp", "udp"} {
				for _, chain := range []string{"PREROUTING", "OUTPUT"} {
					sh(t, w.Node, fmt.Sprintf("%s -w -t nat -A %s -d %s -p %s --dport %d -j DNAT --to-destination %s",
						ipt, chain, virtualIP(fam), proto, 80+i, at(fam.pod(b), 8000)))
				}
				// A backend beside the client would answer it directly: kube-proxy masquerades what hairpins through the bridge.
				sh(t, w.Node, fmt.Sprintf("%s -w -t nat -A POSTROUTING -s %s -d %s -p %s -j MASQUERADE", ipt, fam.pod(app), fam.pod(sibling), proto))
			}
		}
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for i, b := range backends {
			for _, from := range []place{app, w.Node} {
				if got := ask(t, from, proto, at(virtualIP(fam), uint16(80+i))); got.name != b.Name {
					t.Errorf("answered by %s, want %s", got.name, b.Name)
				}
			}
		}
	})
}

// A Service that clients reach through the node's address (a NodePort).
func TestPrivilegedServiceNodePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	web := w.add(w.runtime(net0()), "web", tcp(8080, 8000))
	serve(t, web, "web", ":8000")
	for _, fam := range families() {
		translate(t, w.Node, fam, fam.node(w.Client()), fam.pod(web), 8000)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 80))
		if got.name != "web" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want web, %s", got.name, got.peer, fam.client(w.Client()))
		}
	})
}

// A filter rule set after a connection was learned decides about new ones at
// once, since their first packets go the kernel's own way.
func TestPrivilegedFirewallRuleBindsNewConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
	rules := "table inet admin {\nchain forward {\ntype filter hook forward priority -10;\niifname eth0 oifname cni0 reject\n}\n}\n"
	nft(t, w.Node, rules)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
}

// What a rule drops stays dropped however often it is sent: no packet after the
// first one finds a way around.
func TestPrivilegedDroppedStaysDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
	nft(t, w.Node, "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\n}\n}\n")
	eachFamily(t, func(t *testing.T, fam family) {
		tests := []struct {
			name     string
			from, at place
			to       netip.AddrPort
			port     uint16
		}{
			{"pod to client", app, w.Client(), netip.AddrPortFrom(fam.client(w.Client()), 9000), 9000},
			{"client to hostPort", w.Client(), web, netip.AddrPortFrom(fam.node(w.Client()), 8080), 80},
			{"client to pod", w.Client(), web, netip.AddrPortFrom(fam.pod(web), 80), 80},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				l, err := tt.at.ListenPacket("udp"+fam.suffix, fmt.Sprintf(":%d", tt.port))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				c, err := tt.from.DialFrom(t.Context(), "udp"+fam.suffix, ":0", tt.to.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				for range longTalk {
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
				if c, err := dialWithin(1200*time.Millisecond, tt.from, "tcp"+fam.suffix, "", tt.to.String()); err == nil {
					c.Close()
					t.Error("a TCP connection came through")
				}
			})
		}
	})
}

// With a FORWARD policy of DROP, the firewall plugin's admission lets what the
// pod opens through, as the reference's accept rules do.
func TestPrivilegedFirewallAdmitsThroughDropPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rules := "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n"
	writeConfig(t, w.Node, `{"admitMark": "0x1000"}`)
	p := w.add(w.runtime(net0()), "app")
	nft(t, w.Node, rules)
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, p, proto, at(fam.client(w.Client()), 9000))
	})
}

// Somebody else masquerades what leaves the node: that is done once, by him, and none of it is learned. Without him it is ours again.
func TestPrivilegedMasqueradedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":9000")
	nft(t, w.Node, "table inet other {\nchain post {\ntype nat hook postrouting priority 100;\noifname eth0 masquerade\n}\n}\n")
	asks := func() {
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			if got := ask(t, app, proto, at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.node(w.Client()) {
				t.Errorf("the client saw %s, want %s", got.peer, fam.node(w.Client()))
			}
		})
	}
	asks()
	if c := w.counters(t, app); c.TxFast+c.RxFast != 0 {
		t.Errorf("%+v: packets that another translates took the shortcut", c)
	}
	sh(t, w.Node, "nft delete table inet other")
	asks()
	if c := w.counters(t, app); c.TxFast == 0 || c.RxFast == 0 {
		t.Errorf("%+v: nothing is learned without him", c)
	}
}

// Strict reverse path filtering on every device (rp_filter 1) drops nothing of ours: no packet has a source that the routes contradict.
func TestPrivilegedReversePathFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sh(t, w.Node, "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1")
	rt := w.runtime(net0())
	web, sibling, other := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "sibling"), w.add(w.runtime(net1()), "other")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	v4 := families()[0]
	for _, proto := range []string{"tcp", "udp"} {
		for _, x := range waysInside(w, v4, web, sibling, other) {
			ask(t, x.from, proto, x.to)
		}
		ask(t, w.Client(), proto, at(v4.node(w.Client()), 8080))
		ask(t, w.Client(), proto, at(v4.pod(web), 80))
		ask(t, sibling, proto, at(v4.client(w.Client()), 9000))
		ask(t, w.Node, proto, at(v4.node(w.Client()), 8080))
	}
}
