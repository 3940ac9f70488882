// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// tool runs the operator's tool on the node and decodes its JSON.
func (w *world) tool(t testing.TB, into any, args ...string) {
	t.Helper()
	line := strings.Join(append([]string{programs.Path("sluice")}, args...), " ") + " -o json"
	out := sh(t, w.Node, line)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("sluice %v: %v\n%s", args, err, out)
	}
}

// counts is what the operator's tool says of one endpoint.
type counts struct {
	Addresses []netip.Prefix `json:"addresses"`
	RxPackets uint64         `json:"rx_packets"`
	TxPackets uint64         `json:"tx_packets"`
	RxFast    uint64         `json:"rx_fast_packets"`
	TxFast    uint64         `json:"tx_fast_packets"`
	Drops     uint64         `json:"drops"`
}

// counters returns what the datapath counted for a pod.
func (w *world) counters(t testing.TB, p *pod) counts {
	t.Helper()
	var endpoints []counts
	w.tool(t, &endpoints, "endpoints")
	for _, e := range endpoints {
		if slices.ContainsFunc(e.Addresses, func(a netip.Prefix) bool { return a.Addr() == p.IP4 || a.Addr() == p.IP6 }) {
			return e
		}
	}
	t.Fatalf("sluice endpoints does not know %s (%s, %s): %+v", p.Name, p.IP4, p.IP6, endpoints)
	return counts{}
}

// A conversation takes the shortcut after its first packets, in both
// directions, on every path that has one.
func TestPrivilegedFastPathIsUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	const rounds = 200
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		tests := []struct {
			name string
			from place
			to   string
			pod  *pod
		}{
			{"client to hostPort", w.Client(), at(fam.node(w.Client()), 8080), web},
			{"client to pod", w.Client(), at(fam.pod(web), 80), web},
			{"pod to client", app, at(fam.client(w.Client()), 9000), app},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				before := w.counters(t, tt.pod)
				c, err := dial(tt.from, proto+fam.suffix, "", tt.to)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.rounds(rounds); err != nil {
					t.Fatal(err)
				}
				after := w.counters(t, tt.pod)
				rx, tx := after.RxFast-before.RxFast, after.TxFast-before.TxFast
				if rx < rounds*9/10 || tx < rounds*9/10 {
					t.Errorf("of %d rounds, %d packets to the pod and %d from it were short-cut; want nearly all", rounds, rx, tx)
				}
				if after.RxPackets-before.RxPackets < rounds || after.TxPackets-before.TxPackets < rounds {
					t.Errorf("counted %d to and %d from the pod, want at least %d each",
						after.RxPackets-before.RxPackets, after.TxPackets-before.TxPackets, rounds)
				}
				if after.Drops != before.Drops {
					t.Errorf("%d packets dropped", after.Drops-before.Drops)
				}
			})
		}
	})
}

// With fastPath off every packet goes the kernel's way, and all works.
func TestPrivilegedFastPathOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"fastPath": "off"}`)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("web saw %s", got.peer)
		}
		if got := ask(t, app, proto, at(fam.client(w.Client()), 9000)); got.peer.Addr() != fam.node(w.Client()) {
			t.Errorf("the client saw %s", got.peer)
		}
	})
	for _, p := range []*pod{web, app} {
		if c := w.counters(t, p); c.RxFast+c.TxFast != 0 {
			t.Errorf("%s: %d packets to and %d from the pod were short-cut", p.Name, c.RxFast, c.TxFast)
		}
	}
}

// With fastPath direct nobody else decides about published ports, and about what pods open as ever.
func TestPrivilegedFastPathDirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"fastPath": "direct"}`)
	shell(t, w, "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'")
	rt := w.runtime(net0())
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		before := w.counters(t, web)
		for range 3 {
			if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.name != "web" || got.peer.Addr() != fam.client(w.Client()) {
				t.Errorf("%s answered, which saw %s", got.name, got.peer)
			}
		}
		after := w.counters(t, web)
		if rx, fast := after.RxPackets-before.RxPackets, after.RxFast-before.RxFast; rx == 0 || fast < rx*9/10 { // the others find neighbours
			t.Errorf("of %d packets to the pod %d were short-cut, want nearly all", rx, fast)
		}
		refused(t, web, proto, at(fam.client(w.Client()), 9000))
	})
}

// A connection that another netfilter user rewrites is never short-cut.
func TestPrivilegedServiceIsNotShortcut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":9000")
	for _, fam := range families() {
		translate(t, w.Node, fam, virtualIP(fam), fam.client(w.Client()), 9000)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		before := w.counters(t, p)
		ask(t, p, proto, at(virtualIP(fam), 80))
		after := w.counters(t, p)
		if fast := after.TxFast - before.TxFast + after.RxFast - before.RxFast; fast != 0 {
			t.Errorf("%d packets of a translated connection were short-cut", fast)
		}
	})
}
