// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// Datagrams longer than a packet arrive whole in both directions, through a hostPort and
// masqueraded; with connection tracking, which puts them together on the way, and without.
func TestPrivilegedFragments(t *testing.T) {
	t.Parallel()
	for _, tracked := range []bool{false, true} {
		t.Run(fmt.Sprintf("tracked %v", tracked), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tracked {
				nft(t, w.Node, dropInvalid)
			}
			rt := w.runtime(net0())
			web, app := w.add(rt, "web", udp(8080, 80)), w.add(rt, "app")
			serve(t, web, "web", ":80")
			serve(t, w.Client(), "client", ":9000")
			eachFamily(t, func(t *testing.T, fam family) {
				for _, x := range []struct {
					from place
					to   string
				}{{w.Client(), at(fam.node(w.Client()), 8080)}, {app, at(fam.client(w.Client()), 9000)}} {
					c, err := dial(x.from, "udp"+fam.suffix, "", x.to)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					for _, n := range []int{1500, 3000, 4001, 20000, 1501} {
						if err := c.say(strings.Repeat("x", n)); err != nil {
							t.Errorf("%s, %d bytes: %v", x.to, n, err)
						}
						if err := c.rounds(3); err != nil { // small ones go on as ever
							t.Errorf("%s, after %d bytes: %v", x.to, n, err)
						}
					}
				}
			})
			for _, p := range []*pod{web, app} {
				if c := w.counters(t, p); c.Drops != 0 {
					t.Errorf("%s: %d packets dropped", p.Name, c.Drops)
				}
			}
		})
	}
}

// A connection's first packet may be a fragment.
func TestPrivilegedFragmentsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		for _, x := range []struct {
			from place
			to   string
		}{{w.Client(), at(fam.node(w.Client()), 8080)}, {app, at(fam.client(w.Client()), 9000)}} {
			conn, err := x.from.DialContext(t.Context(), "udp"+fam.suffix, x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			c := &talk{Conn: conn, udp: true, limit: patience}
			for range 3 {
				if err := c.say(strings.Repeat("y", 5000)); err != nil {
					t.Errorf("%s: %v", x.to, err)
				}
			}
		}
	})
}
