// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// way is from one pod of the node to another, as both fragments and errors have to take it.
type way struct {
	name string
	from place
	to   string
}

// waysInside are those through a hairpin, and between two networks.
func waysInside(w *world, fam family, web, sibling, other *pod) []way {
	return []way{
		{"itself", web, at(fam.node(w.Client()), 8080)},
		{"sibling", sibling, at(fam.node(w.Client()), 8080)},
		{"hostPort of another network", other, at(fam.node(w.Client()), 8080)},
		{"another network", other, at(fam.pod(web), 80)},
	}
}

// Datagrams longer than a packet arrive whole between the pods of a node too, however they get there.
func TestPrivilegedFragmentsInside(t *testing.T) {
	t.Parallel()
	for _, tracked := range []bool{false, true} {
		t.Run(fmt.Sprintf("tracked %v", tracked), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tracked {
				nft(t, w.Node, dropInvalid)
			}
			rt := w.runtime(net0())
			web, sibling, other := w.add(rt, "web", udp(8080, 80)), w.add(rt, "sibling"), w.add(w.runtime(net1()), "other")
			serve(t, web, "web", ":80")
			eachFamily(t, func(t *testing.T, fam family) {
				for _, x := range waysInside(w, fam, web, sibling, other) {
					c, err := dial(x.from, "udp"+fam.suffix, "", x.to)
					if err != nil {
						t.Fatalf("%s: %v", x.name, err)
					}
					defer c.Close()
					for _, n := range []int{1500, 4001, 20000} {
						if err := c.say(strings.Repeat("x", n)); err != nil {
							t.Errorf("%s, %d bytes: %v", x.name, n, err)
						}
						if err := c.rounds(3); err != nil { // small ones go on as ever
							t.Errorf("%s, after %d bytes: %v", x.name, n, err)
						}
					}
				}
			})
			for _, p := range []*pod{web, sibling, other} {
				if c := w.counters(t, p); c.Drops != 0 {
					t.Errorf("%s: %d packets dropped", p.Name, c.Drops)
				}
			}
		})
	}
}

// Nobody listens: a pod that asks by a hairpin, or in another network, is told as one outside is.
func TestPrivilegedPortUnreachableInside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, sibling, other := w.add(rt, "web", udp(8080, 80)), w.add(rt, "sibling"), w.add(w.runtime(net1()), "other")
	eachFamily(t, func(t *testing.T, fam family) {
		for _, x := range waysInside(w, fam, web, sibling, other) {
			t.Run(x.name, func(t *testing.T) { wantRefused(t, x.from, "udp"+fam.suffix, x.to) })
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
			w := newWorld(t)
			one, two := net0(), net1()
			small, gw4, gw6 := &one, "10.1.0.1", "fd00:10:1::1"
			if narrow == "asking" {
				small, gw4, gw6 = &two, "10.2.0.1", "fd00:10:2::1"
			}
			small.extra = attributes{"mtu": 1300}
			web, other := w.add(w.runtime(one), "web", tcp(8080, 80)), w.add(w.runtime(two), "other")
			serve(t, web, "web", ":80")
			bottle := map[string]*pod{"asked": web, "asking": other}[narrow]
			// It promises to take more than its link does.
			sh(t, bottle, "ip route change default via "+gw4+" advmss 1460")
			sh(t, bottle, "ip -6 route change default via "+gw6+" advmss 1440")
			eachFamily(t, func(t *testing.T, fam family) {
				for _, to := range []string{at(fam.node(w.Client()), 8080), at(fam.pod(web), 80)} {
					c, err := dial(other, "tcp"+fam.suffix, "", to)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if err := c.rounds(3); err != nil {
						t.Fatal(err)
					}
					say(t, c, strings.Repeat("x", much))
				}
			})
		})
	}
}
