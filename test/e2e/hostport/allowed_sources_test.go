// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Who is not in allowedSources does not get through, from outside or from a pod; the node's own
// processes do. A mapping's list is in place of the network's.
func TestPrivilegedAllowedSources(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	first, second := w.Clients[0], w.Clients[1]
	n := e2etest.Net0()
	n.Portmap = e2etest.Attributes{"allowedSources": []string{first.Uplink.Client[0].Masked().String(), first.Uplink.Client[1].Masked().String()}}
	rt := w.Runtime(n)
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.TCP(8081, 80).AllowedFrom(), e2etest.UDP(8081, 80).AllowedFrom(),
		e2etest.TCP(8082, 80).AllowedFrom("10.1.0.0/16", "fd00:10:1::/64"), e2etest.UDP(8082, 80).AllowedFrom("10.1.0.0/16", "fd00:10:1::/64"))
	sibling := w.AddPod(rt, "sibling")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		node := fam.Node(first)
		var closed []func()
		for _, x := range []struct {
			from e2etest.Place
			port uint16
			ok   bool
		}{
			{first, 8080, true}, {second, 8080, false}, {sibling, 8080, false}, {w.Node, 8080, true},
			{first, 8081, true}, {second, 8081, true}, {sibling, 8081, true},
			{first, 8082, false}, {sibling, 8082, true}, {w.Node, 8082, true},
		} {
			if !x.ok {
				closed = append(closed, func() { e2etest.AssertNoAnswer(t, x.from, proto, e2etest.At(node, x.port)) })
				continue
			}
			if got := e2etest.Ask(t, x.from, proto, e2etest.At(node, x.port)); got.Server != "web" {
				t.Errorf("%d: answered by %s", x.port, got.Server)
			}
		}
		e2etest.AtOnce(closed...)
	})
	if n := w.Drops("source is not in the port's allowedSources"); n == 0 {
		t.Error("no drop was counted")
	}
	if err := web.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e2etest.EmptyMap(w, "sl_hp_allowlist")
	if err := web.Check(); err == nil {
		t.Error("CHECK does not miss the list")
	}
}

// A running connection ends when the port gets another list.
func TestPrivilegedAllowedSourcesChange(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	rt := w.Runtime(n)
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
	next := w.NewPod(rt, "next", e2etest.TCP(8080, 80).AllowedFrom("198.18.0.0/15"), e2etest.UDP(8080, 80).AllowedFrom("198.18.0.0/15"))
	var talks []*e2etest.Talk
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := e2etest.Dial(w.Client(), proto, "", e2etest.At(fam.Node(w.Client()), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Fatal(err)
			}
			c.Timeout = 500 * time.Millisecond
			talks = append(talks, c)
		}
	}
	next.MustAdd()
	for _, c := range talks {
		if err := c.Send("still?"); err == nil {
			t.Errorf("%s: goes on", c.RemoteAddr())
		}
	}
}
