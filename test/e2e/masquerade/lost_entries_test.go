// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// loseEntries takes out of the tables what lost says, as the LRU does.
func loseEntries(w *e2etest.World, lost func(k bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) bool) (n int) {
	w.T.Helper()
	w.DoOnNode(func() error {
		for _, name := range []string{"sl_ct", "sl_ct_unassured"} {
			path, err := e2etest.PinnedMap(name)
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
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app, other := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	isIndex := func(f bpfgen.TypesSlCtEntry) bool { return f.Flags&uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE) != 0 }
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		var talks []*e2etest.Talk
		for _, x := range []e2etest.Path{
			{Name: "hostPort", From: w.Client(), To: e2etest.At(fam.Node(w.Client()), 8080)},
			{Name: "masquerade", From: app, To: e2etest.At(fam.Client(w.Client()), 9000)},
			{Name: "hairpin", From: app, To: e2etest.At(fam.Node(w.Client()), 8080)},
			{Name: "between networks", From: other, To: e2etest.At(fam.Pod(web), 80)},
		} {
			c, err := e2etest.Dial(x.From, proto+fam.Suffix, ":0", x.To)
			if err != nil {
				t.Fatalf("%s: %v", x.Name, err)
			}
			defer c.Close()
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Fatalf("%s: %v", x.Name, err)
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
			if n := loseEntries(w, half.lost); n < 2 {
				t.Errorf("%d %s were there", n, half.name)
			}
			for _, c := range talks {
				before := c.Answer.Peer
				if err := c.SendRounds(e2etest.LongTalk); err != nil {
					t.Errorf("%s after the %s were lost: %v", c.RemoteAddr(), half.name, err)
				}
				if c.Answer.Peer != before {
					t.Errorf("%s after the %s were lost: seen as %s, before as %s", c.RemoteAddr(), half.name, c.Answer.Peer, before)
				}
			}
		}
	})
}

// One client port reaches one port of a pod by two addresses of the node and by two published ports, from outside: four connections at once,
// each answered from where it was asked.
func TestPrivilegedSameClientPort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.MustRun(t, w.Node, "ip addr add 192.0.2.71/24 dev eth0")
	e2etest.MustRun(t, w.Node, "ip addr add 2001:db8:1::71/64 dev eth0 nodad")
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.TCP(8081, 80), e2etest.UDP(8081, 80))
	e2etest.Serve(t, web, "web", ":80")
	for _, fam := range e2etest.Families() {
		second := netip.MustParseAddr(map[string]string{"4": "192.0.2.71", "6": "2001:db8:1::71"}[fam.Suffix])
		for _, proto := range []string{"tcp", "udp"} {
			var talks []*e2etest.Talk
			seen := map[netip.AddrPort]string{}
			for _, to := range []string{
				e2etest.At(fam.Node(w.Client()), 8080), e2etest.At(second, 8080), e2etest.At(fam.Node(w.Client()), 8081), e2etest.At(second, 8081),
			} {
				c := e2etest.DialFromSharedPort(t, w.Client().NS, proto, e2etest.At(fam.Client(w.Client()), 7000), to)
				if other := seen[c.Answer.Peer]; other != "" || c.Answer.Peer.Addr() != fam.Client(w.Client()) {
					t.Errorf("%s and %s are both seen as %s", to, other, c.Answer.Peer)
				}
				seen[c.Answer.Peer] = to
				talks = append(talks, c)
			}
			for i := range 5 {
				for _, c := range talks {
					if err := c.SendRounds(10); err != nil {
						t.Errorf("%s %s, round %d: %v", proto, c.RemoteAddr(), i, err)
					}
				}
			}
		}
	}
}
