// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Echo requests of a pod leave with the node's address, and the replies find
// back to the pod that asked, even when two use one identifier.
func TestPrivilegedMasqueradeEcho(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	pods := []*e2etest.Pod{w.AddPod(rt, "a"), w.AddPod(rt, "b")}
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		e := fam.Echo()
		ear, err := w.Client().ListenPacket(e.Network, fam.Any)
		if err != nil {
			t.Fatal(err)
		}
		defer ear.Close()
		for seq := range uint16(e2etest.LongTalk) {
			for _, p := range pods {
				if err := e2etest.Ping(p, fam, fam.Client(w.Client()), 4711, seq); err != nil {
					t.Fatalf("%s, ping %d: %v", p.Name, seq, err)
				}
				payload := fmt.Appendf(nil, "ping %s %d %d", fam.Client(w.Client()), 4711, seq)
				from, _, err := e2etest.AwaitEcho(ear, e.Request, payload)
				if err != nil {
					t.Fatal(err)
				}
				if from != fam.Node(w.Client()) {
					t.Fatalf("%s, ping %d: the client saw %s, want %s", p.Name, seq, from, fam.Node(w.Client()))
				}
			}
		}
	})
}

// Everybody else may ping as well: the client the node, the node the pod, the
// client the pod, the pod its gateway and a sibling.
func TestPrivilegedEcho(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	a, b := w.AddPod(rt, "a", e2etest.TCP(8080, 80)), w.AddPod(rt, "b")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		tests := []struct {
			name string
			from e2etest.Place
			to   netip.Addr
		}{
			{"client to node", w.Client(), fam.Node(w.Client())},
			{"client to pod", w.Client(), fam.Pod(a)},
			{"node to client", w.Node, fam.Client(w.Client())},
			{"node to pod", w.Node, fam.Pod(a)},
			{"pod to node", a, fam.Node(w.Client())},
			{"pod to gateway", a, netip.MustParseAddr(fam.Gateway)},
			{"pod to pod", a, fam.Pod(b)},
		}
		for i, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				for seq := range uint16(5) {
					if err := e2etest.Ping(tt.from, fam, tt.to, uint16(100+i), seq); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	})
}
