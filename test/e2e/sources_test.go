// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// from limits a mapping to networks.
func (m mapping) from(nets ...string) mapping {
	nets = append([]string{}, nets...) // an empty list is not none
	m.AllowedSources = &nets
	return m
}

// Who is not in allowedSources does not get through, from outside or from a pod; the node's own
// processes do. A mapping's list is in place of the network's.
func TestPrivilegedAllowedSources(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	n := net0()
	n.portmap = attributes{"allowedSources": []string{first.Uplink.Client[0].Masked().String(), first.Uplink.Client[1].Masked().String()}}
	rt := w.runtime(n)
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80), tcp(8081, 80).from(), udp(8081, 80).from(),
		tcp(8082, 80).from("10.1.0.0/16", "fd00:10:1::/64"), udp(8082, 80).from("10.1.0.0/16", "fd00:10:1::/64"))
	sibling := w.add(rt, "sibling")
	serve(t, web, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		node := fam.node(first)
		for _, x := range []struct {
			from place
			port uint16
			ok   bool
		}{
			{first, 8080, true}, {second, 8080, false}, {sibling, 8080, false}, {w.Node, 8080, true},
			{first, 8081, true}, {second, 8081, true}, {sibling, 8081, true},
			{first, 8082, false}, {sibling, 8082, true}, {w.Node, 8082, true},
		} {
			if !x.ok {
				refused(t, x.from, proto, at(node, x.port))
				continue
			}
			if got := ask(t, x.from, proto, at(node, x.port)); got.name != "web" {
				t.Errorf("%d: answered by %s", x.port, got.name)
			}
		}
	})
	if n := w.drops("source is not in the port's allowedSources"); n == 0 {
		t.Error("no drop was counted")
	}
	if err := web.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	emptyMap(w, "sl_hp_allowlist")
	if err := web.check(); err == nil {
		t.Error("CHECK does not miss the list")
	}
}

// nodeStatus is the part of "sluice status -o json" that tests look at.
type nodeStatus struct {
	Drops []struct {
		Reason  string `json:"reason"`
		Packets int    `json:"packets"`
	} `json:"drops"`
	Local struct {
		Cgroup   string `json:"cgroup"`
		Attached bool   `json:"attached"`
		Reason   string `json:"reason"`
	} `json:"local"`
}

func (w *world) status() nodeStatus {
	w.t.Helper()
	var s nodeStatus
	if err := json.Unmarshal([]byte(sh(w.t, w.Node, programs.Path("sluice")+" status -o json")), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// drops reads a counter by its name.
func (w *world) drops(reason string) int {
	w.t.Helper()
	total := 0
	for _, d := range w.status().Drops {
		if d.Reason == reason {
			total += d.Packets
		}
	}
	return total
}

// A running connection ends when the port gets another list.
func TestPrivilegedAllowedSourcesChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := net0()
	rt := w.runtime(n)
	serve(t, w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	next := w.newPod(rt, "next", tcp(8080, 80).from("198.18.0.0/15"), udp(8080, 80).from("198.18.0.0/15"))
	var talks []*talk
	for _, fam := range families() {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := dial(w.Client(), proto, "", at(fam.node(w.Client()), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.rounds(longTalk); err != nil {
				t.Fatal(err)
			}
			c.limit = 500 * time.Millisecond
			talks = append(talks, c)
		}
	}
	next.mustAdd()
	for _, c := range talks {
		if err := c.say("still?"); err == nil {
			t.Errorf("%s: goes on", c.RemoteAddr())
		}
	}
}

// What does not meet the conditions reaches the node itself, as without a hostPort.
func TestPrivilegedConditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	n := net0()
	n.portmap = attributes{
		"conditionsV4": []string{"!", "-s", netlab.IP4(second.Uplink.Client).String()},
		"conditionsV6": []string{"-i", first.Uplink.Name},
	}
	web := w.add(w.runtime(n), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	serve(t, w.Node, "node", ":8080")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, x := range []struct {
			from *netlab.Client
			want string
		}{{first, "web"}, {second, "node"}} {
			if got := ask(t, x.from, proto, at(fam.node(x.from), 8080)); got.name != x.want {
				t.Errorf("%s: answered by %s, want %s", x.from.Name, got.name, x.want)
			}
		}
	})
	if err := web.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

// Of two mappings for one port in one request the first counts, as with the reference.
func TestPrivilegedSamePortTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	four := tcp(8080, 81)
	four.HostIP = "0.0.0.0"
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80), four)
	for port := 80; port <= 81; port++ {
		serve(t, web, fmt.Sprint("port", port), fmt.Sprint(":", port))
	}
	eachFamily(t, func(t *testing.T, fam family) {
		if got := ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080)); got.name != "port80" {
			t.Errorf("answered by %s, want port80", got.name)
		}
	})
	web.mustDel()
}
