// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// pathsInside are those through a hairpin, and between two networks.
func pathsInside(w *e2etest.World, fam e2etest.Family, web, sibling, other *e2etest.Pod) []e2etest.Path {
	return []e2etest.Path{
		{Name: "itself", From: web, To: e2etest.At(fam.Node(w.Client()), 8080)},
		{Name: "sibling", From: sibling, To: e2etest.At(fam.Node(w.Client()), 8080)},
		{Name: "hostPort of another network", From: other, To: e2etest.At(fam.Node(w.Client()), 8080)},
		{Name: "another network", From: other, To: e2etest.At(fam.Pod(web), 80)},
	}
}

// Datagrams longer than a packet arrive whole between the pods of a node too, however they get there.
func TestPrivilegedFragmentsInside(t *testing.T) {
	t.Parallel()
	for _, tracked := range []bool{false, true} {
		t.Run(fmt.Sprintf("tracked %v", tracked), func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			if tracked {
				e2etest.LoadNFT(t, w.Node, dropInvalidRules)
			}
			rt := w.Runtime(e2etest.Net0())
			web, sibling, other := w.AddPod(rt, "web", e2etest.UDP(8080, 80)), w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range pathsInside(w, fam, web, sibling, other) {
					c, err := e2etest.Dial(x.From, "udp"+fam.Suffix, "", x.To)
					if err != nil {
						t.Fatalf("%s: %v", x.Name, err)
					}
					defer c.Close()
					for _, n := range []int{1500, 4001, 20000} {
						if err := c.Send(strings.Repeat("x", n)); err != nil {
							t.Errorf("%s, %d bytes: %v", x.Name, n, err)
						}
						if err := c.SendRounds(3); err != nil { // small ones go on
							t.Errorf("%s, after %d bytes: %v", x.Name, n, err)
						}
					}
				}
			})
			for _, p := range []*e2etest.Pod{web, sibling, other} {
				if c := w.Counters(t, p); c.Drops != 0 {
					t.Errorf("%s: %d packets dropped", p.Name, c.Drops)
				}
			}
		})
	}
}

// No process listens: a pod that asks by a hairpin, or in another network, gets the same error as a client outside.
func TestPrivilegedPortUnreachableInside(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, sibling, other := w.AddPod(rt, "web", e2etest.UDP(8080, 80)), w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, x := range pathsInside(w, fam, web, sibling, other) {
			t.Run(x.Name, func(t *testing.T) { assertPortUnreachable(t, x.From, "udp"+fam.Suffix, x.To) })
		}
	})
}

// Path MTU discovery between pods: the node says that a packet does not fit the link to the other one, to either end, in the terms
// of the connection that it knows.
func TestPrivilegedPathMTUInside(t *testing.T) {
	t.Parallel()
	for _, narrow := range []string{"asked", "asking"} {
		t.Run(narrow, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			one, two := e2etest.Net0(), e2etest.Net1()
			small, gw4, gw6 := &one, "10.1.0.1", "fd00:10:1::1"
			if narrow == "asking" {
				small, gw4, gw6 = &two, "10.2.0.1", "fd00:10:2::1"
			}
			small.Extra = e2etest.Attributes{"mtu": 1300}
			web, other := w.AddPod(w.Runtime(one), "web", e2etest.TCP(8080, 80)), w.AddPod(w.Runtime(two), "other")
			e2etest.Serve(t, web, "web", ":80")
			bottle := map[string]*e2etest.Pod{"asked": web, "asking": other}[narrow]
			// It promises to take more than its link does.
			e2etest.MustRun(t, bottle, "ip route change default via "+gw4+" advmss 1460")
			e2etest.MustRun(t, bottle, "ip -6 route change default via "+gw6+" advmss 1440")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, to := range []string{e2etest.At(fam.Node(w.Client()), 8080), e2etest.At(fam.Pod(web), 80)} {
					c, err := e2etest.Dial(other, "tcp"+fam.Suffix, "", to)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if err := c.SendRounds(3); err != nil {
						t.Fatal(err)
					}
					e2etest.SendLong(t, c, strings.Repeat("x", e2etest.LongerThanQueues))
				}
			})
		})
	}
}
