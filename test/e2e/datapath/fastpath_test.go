// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// A conversation takes the fast path after its first packets, in both
// directions, on every path that has one.
func TestPrivilegedFastPathIsUsed(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	const rounds = 200
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		tests := []struct {
			name string
			from e2etest.Place
			to   string
			pod  *e2etest.Pod
		}{
			{"client to hostPort", w.Client(), e2etest.At(fam.Node(w.Client()), 8080), web},
			{"client to pod", w.Client(), e2etest.At(fam.Pod(web), 80), web},
			{"pod to client", app, e2etest.At(fam.Client(w.Client()), 9000), app},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				before := w.Counters(t, tt.pod)
				c, err := e2etest.Dial(tt.from, proto+fam.Suffix, "", tt.to)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.SendRounds(rounds); err != nil {
					t.Fatal(err)
				}
				after := w.Counters(t, tt.pod)
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
	w := e2etest.NewWorld(t)
	w.Configure(`{"fastPath": "off"}`)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("web saw %s", got.Peer)
		}
		if got := e2etest.Ask(t, app, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
			t.Errorf("the client saw %s", got.Peer)
		}
	})
	for _, p := range []*e2etest.Pod{web, app} {
		if c := w.Counters(t, p); c.RxFast+c.TxFast != 0 {
			t.Errorf("%s: %d packets to and %d from the pod were short-cut", p.Name, c.RxFast, c.TxFast)
		}
	}
}

// With the immediate fast path netfilter does not decide about published ports. It still does about what pods open.
func TestPrivilegedFastPathDirect(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"fastPath": "immediate"}`)
	e2etest.RunScript(t, w, "nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'")
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		before := w.Counters(t, web)
		for range 3 {
			if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "web" || got.Peer.Addr() != fam.Client(w.Client()) {
				t.Errorf("%s answered, which saw %s", got.Server, got.Peer)
			}
		}
		after := w.Counters(t, web)
		if rx, fast := after.RxPackets-before.RxPackets, after.RxFast-before.RxFast; rx == 0 || fast < rx*9/10 { // the others find neighbours
			t.Errorf("of %d packets to the pod %d were short-cut, want nearly all", rx, fast)
		}
		e2etest.AssertNoAnswer(t, web, proto, e2etest.At(fam.Client(w.Client()), 9000))
	})
}
