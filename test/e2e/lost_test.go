// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// loseFlows takes out of the tables what lost says, as the LRU does.
func loseFlows(w *world, lost func(k bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) bool) (n int) {
	w.t.Helper()
	w.onNode(func() error {
		for _, name := range []string{"sl_ct", "sl_ct_unassured"} {
			path, err := pinnedMap(name)
			if err != nil {
				return err
			}
			m, err := bpfsys.OpenMap(path)
			if err != nil {
				return err
			}
			defer m.Close()
			var keys []bpfgen.TypesSlTuple
			err = codec.Each(m, func(k *bpfgen.TypesSlTuple, f *bpfgen.TypesSlCtEntry) bool {
				if lost(*k, *f) {
					keys = append(keys, *k)
				}
				return true
			})
			if err != nil {
				return err
			}
			for _, k := range keys {
				if was, err := bpfsys.Delete(m, k); was && err == nil {
					n++
				}
			}
		}
		return nil
	})
	return n
}

// Either half of a flow, or for a hostPort all of it, may go while the connection runs: the next packet, from either end, brings it back.
func TestPrivilegedLostHalves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app, other := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app"), w.add(w.runtime(net1()), "other")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	isIndex := func(f bpfgen.TypesSlCtEntry) bool { return f.Flags&uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE) != 0 }
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		var talks []*talk
		for _, x := range []way{
			{"hostPort", w.Client(), at(fam.node(w.Client()), 8080)},
			{"masquerade", app, at(fam.client(w.Client()), 9000)},
			{"hairpin", app, at(fam.node(w.Client()), 8080)},
			{"between networks", other, at(fam.pod(web), 80)},
		} {
			c, err := dial(x.from, proto+fam.suffix, ":0", x.to)
			if err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			defer c.Close()
			if err := c.rounds(longTalk); err != nil {
				t.Fatalf("%s: %v", x.name, err)
			}
			talks = append(talks, c)
		}
		for _, half := range []struct {
			name string
			lost func(bpfgen.TypesSlTuple, bpfgen.TypesSlCtEntry) bool
		}{
			{"indexes", func(_ bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) bool { return isIndex(f) }},
			{"records", func(_ bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) bool { return !isIndex(f) }},
		} {
			if n := loseFlows(w, half.lost); n < 2 {
				t.Errorf("%d %s were there", n, half.name)
			}
			for _, c := range talks {
				before := c.answer.peer
				if err := c.rounds(longTalk); err != nil {
					t.Errorf("%s after the %s were lost: %v", c.RemoteAddr(), half.name, err)
				}
				if c.answer.peer != before {
					t.Errorf("%s after the %s were lost: seen as %s, before as %s", c.RemoteAddr(), half.name, c.answer.peer, before)
				}
			}
		}
	})
}

// As many connections toward one server as there are ports for, and no more: the next one is a counted drop, and no packet of the pod leaves
// with its own address. A port that is free again is used again.
func TestPrivilegedPortsExhausted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"snatPorts": "62000-62003"}`)
	app := w.add(w.runtime(net0()), "app")
	serve(t, w.Client(), "client", ":9000")
	serve(t, w.Client(), "client", ":9001")
	// On the client, since the node translates behind netfilter.
	rules := "table inet leak {\ncounter leaked {}\nchain pre {\ntype filter hook prerouting priority -300;\nip saddr 10.1.0.0/16 counter name leaked\nip6 saddr fd00:10:1::/64 counter name leaked\n}\n}\n"
	nft(t, w.Client(), rules)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		server := at(fam.client(w.Client()), 9000)
		var talks []*talk
		seen := map[netip.AddrPort]bool{}
		for range 4 {
			c, err := dial(app, proto+fam.suffix, "", server)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			talks = append(talks, c)
			seen[c.answer.peer] = true
		}
		if len(seen) != 4 {
			t.Errorf("4 connections are seen as %v", seen)
		}
		before := w.drops("no free source port toward the destination")
		denied(t, app, proto+fam.suffix, server)
		if n := w.drops("no free source port toward the destination") - before; n <= 0 {
			t.Errorf("%d drops counted: %+v", n, w.status().Drops)
		}
		ask(t, app, proto+fam.suffix, at(fam.client(w.Client()), 9001)) // another server has ports of its own
		for _, c := range talks {
			if err := c.rounds(3); err != nil {
				t.Error(err)
			}
		}
	})
	if out := sh(t, w.Client(), "nft list counter inet leak leaked"); !strings.Contains(out, "packets 0 ") {
		t.Errorf("packets with a pod's address reached the client: %s", out)
	}
}

// One client port reaches one port of a pod by two addresses of the node and by two published ports, from outside: four connections at once,
// each answered from where it was asked.
func TestPrivilegedSameClientPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sh(t, w.Node, "ip addr add 192.0.2.71/24 dev eth0")
	sh(t, w.Node, "ip addr add 2001:db8:1::71/64 dev eth0 nodad")
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80), tcp(8081, 80), udp(8081, 80))
	serve(t, web, "web", ":80")
	for _, fam := range families() {
		second := netip.MustParseAddr(map[string]string{"4": "192.0.2.71", "6": "2001:db8:1::71"}[fam.suffix])
		for _, proto := range []string{"tcp", "udp"} {
			var talks []*talk
			seen := map[netip.AddrPort]string{}
			for _, to := range []string{
				at(fam.node(w.Client()), 8080), at(second, 8080), at(fam.node(w.Client()), 8081), at(second, 8081),
			} {
				c := reuse(t, w.Client().NS, proto, at(fam.client(w.Client()), 7000), to)
				if other := seen[c.answer.peer]; other != "" || c.answer.peer.Addr() != fam.client(w.Client()) {
					t.Errorf("%s and %s are both seen as %s", to, other, c.answer.peer)
				}
				seen[c.answer.peer] = to
				talks = append(talks, c)
			}
			for i := range 5 {
				for _, c := range talks {
					if err := c.rounds(10); err != nil {
						t.Errorf("%s %s, round %d: %v", proto, c.RemoteAddr(), i, err)
					}
				}
			}
		}
	}
}
