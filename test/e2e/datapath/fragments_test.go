// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Datagrams longer than a packet arrive whole in both directions, through a hostPort and
// masqueraded; with connection tracking, which puts them together on the way, and without.
func TestPrivilegedFragments(t *testing.T) {
	t.Parallel()
	for _, tracked := range []bool{false, true} {
		t.Run(fmt.Sprintf("tracked %v", tracked), func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			if tracked {
				e2etest.LoadNFT(t, w.Node, dropInvalidRules)
			}
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					from e2etest.Place
					to   string
				}{{w.Client(), e2etest.At(fam.Node(w.Client()), 8080)}, {app, e2etest.At(fam.Client(w.Client()), 9000)}} {
					c, err := e2etest.Dial(x.from, "udp"+fam.Suffix, "", x.to)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					for _, n := range []int{1500, 3000, 4001, 20000, 1501} {
						if err := c.Send(strings.Repeat("x", n)); err != nil {
							t.Errorf("%s, %d bytes: %v", x.to, n, err)
						}
						if err := c.SendRounds(3); err != nil { // small ones go on
							t.Errorf("%s, after %d bytes: %v", x.to, n, err)
						}
					}
				}
			})
			for _, p := range []*e2etest.Pod{web, app} {
				if c := w.Counters(t, p); c.Drops != 0 {
					t.Errorf("%s: %d packets dropped", p.Name, c.Drops)
				}
			}
		})
	}
}

// A connection's first packet may be a fragment.
func TestPrivilegedFragmentsFirst(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, x := range []struct {
			from e2etest.Place
			to   string
		}{{w.Client(), e2etest.At(fam.Node(w.Client()), 8080)}, {app, e2etest.At(fam.Client(w.Client()), 9000)}} {
			conn, err := x.from.DialContext(t.Context(), "udp"+fam.Suffix, x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			c := &e2etest.Talk{Conn: conn, UDP: true, Timeout: e2etest.AnswerTimeout}
			for range 3 {
				if err := c.Send(strings.Repeat("y", 5000)); err != nil {
					t.Errorf("%s: %v", x.to, err)
				}
			}
		}
	})
}
