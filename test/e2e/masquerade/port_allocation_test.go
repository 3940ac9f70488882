// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// As many connections toward one server as there are ports for, and no more: the next one is a counted drop, and no packet of the pod leaves
// with its own address. A port that is free again is used again.
func TestPrivilegedPortsExhausted(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"snatPorts": "62000-62003"}`)
	// A pod keeps its own port where it is free.
	e2etest.MustRun(t, w.Node, "sysctl -qw net.ipv4.ip_local_reserved_ports=1024-61999,62004-65535")
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, w.Client(), "client", ":9001")
	// On the client, since the node translates behind netfilter.
	rules := "table inet leak {\ncounter leaked {}\nchain pre {\ntype filter hook prerouting priority -300;\nip saddr 10.1.0.0/16 counter name leaked\nip6 saddr fd00:10:1::/64 counter name leaked\n}\n}\n"
	e2etest.LoadNFT(t, w.Client(), rules)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		server := e2etest.At(fam.Client(w.Client()), 9000)
		var talks []*e2etest.Talk
		seen := map[netip.AddrPort]bool{}
		for range 4 {
			c, err := e2etest.Dial(app, proto+fam.Suffix, "", server)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			talks = append(talks, c)
			seen[c.Answer.Peer] = true
		}
		if len(seen) != 4 {
			t.Errorf("4 connections are seen as %v", seen)
		}
		before := w.Drops("no free source port toward the destination")
		e2etest.AssertDenied(t, app, proto+fam.Suffix, server)
		if n := w.Drops("no free source port toward the destination") - before; n <= 0 {
			t.Errorf("%d drops counted: %+v", n, w.Status().Drops)
		}
		e2etest.Ask(t, app, proto+fam.Suffix, e2etest.At(fam.Client(w.Client()), 9001)) // another server has ports of its own
		for _, c := range talks {
			if err := c.SendRounds(3); err != nil {
				t.Error(err)
			}
		}
	})
	if out := e2etest.MustRun(t, w.Client(), "nft list counter inet leak leaked"); !strings.Contains(out, "packets 0 ") {
		t.Errorf("packets with a pod's address reached the client: %s", out)
	}
}
