// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Pods on netkit devices have what pods on veths have: hostPorts and masquerading on the fast path, siblings, a hairpin, CHECK, and
// nothing left after DEL. One of the pods is on a veth, so that packets go from each kind to the other.
func TestPrivilegedNetkitPods(t *testing.T) {
	t.Parallel()
	require.Netkit(t)
	for _, n := range []e2etest.Network{e2etest.Net0(), e2etest.PTPNetwork()} {
		name := n.Main
		if name == "" {
			name = "bridge"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			before := w.Warmup(w.Runtime(n), e2etest.TCP(8080, 80))
			n.Extra = e2etest.Attributes{"deviceKind": "netkit", "mtu": 1400}
			rt := w.Runtime(n)
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			n.Extra = e2etest.Attributes{"mtu": 1400}
			old := w.AddPod(w.Runtime(n), "old")
			for p, kind := range map[*e2etest.Pod]string{web: "netkit", app: "netkit", old: "veth"} {
				if got := e2etest.MustRun(t, w.Node, "ip -d link show "+p.HostVeth()); !strings.Contains(got, kind) {
					t.Errorf("%s is not on %s: %s", p.Name, kind, got)
				}
				e2etest.AssertChecked(t, p)
				e2etest.Serve(t, p, p.Name, ":80")
			}
			e2etest.Serve(t, w.Client(), "client", ":9000")
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				before, old0 := w.Counters(t, web), w.Counters(t, old)
				if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Peer.Addr() != fam.Client(w.Client()) {
					t.Errorf("web saw %s", got.Peer)
				}
				if got := e2etest.Ask(t, app, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Peer.Addr() != fam.Node(w.Client()) {
					t.Errorf("the client saw %s", got.Peer)
				}
				between := []e2etest.Path{
					{Name: "a sibling", From: app, To: e2etest.At(fam.Pod(web), 80)},
					{Name: "from netkit to veth", From: app, To: e2etest.At(fam.Pod(old), 80)},
					{Name: "from veth to netkit", From: old, To: e2etest.At(fam.Pod(web), 80)},
					{Name: "a hairpin", From: web, To: e2etest.At(fam.Node(w.Client()), 8080)},
					{Name: "a hostPort of a sibling", From: app, To: e2etest.At(fam.Node(w.Client()), 8080)},
				}
				for _, x := range between {
					c, err := e2etest.Dial(x.From, proto, "", x.To)
					if err != nil {
						t.Errorf("%s: %v", x.Name, err)
						continue
					}
					if err := c.SendRounds(5); err != nil {
						t.Errorf("%s: %v", x.Name, err)
					}
					if strings.HasPrefix(proto, "tcp") {
						e2etest.SendLong(t, c, strings.Repeat("x", 200_000))
					}
					c.Close()
				}
				after, old1 := w.Counters(t, web), w.Counters(t, old)
				if after.RxFast == before.RxFast || after.TxFast == before.TxFast {
					t.Errorf("nothing bypassed the stack: %+v, then %+v", before, after)
				}
				if old1.TxFast == old0.TxFast || old1.RxPackets == old0.RxPackets {
					t.Errorf("nothing bypassed the stack between veth and netkit: %+v, then %+v", old0, old1)
				}
			})
			for _, p := range []*e2etest.Pod{web, app, old} {
				if c := w.Counters(t, p); c.Drops != 0 {
					t.Errorf("%s: %d packets dropped", p.Name, c.Drops)
				}
				p.MustDel()
			}
			w.AssertNothingLeft(before)
		})
	}
}

// Whole files go both ways through netkit devices, in both families.
func TestPrivilegedNetkitBulk(t *testing.T) {
	t.Parallel()
	require.Netkit(t)
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Extra = e2etest.Attributes{"deviceKind": "netkit"}
	rt := w.Runtime(n)
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.BulkServer(t, web, ":80")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, x := range []e2etest.Path{
			{Name: "from outside", To: e2etest.At(fam.Node(w.Client()), 8080)},
			{Name: "from a sibling", From: app, To: e2etest.At(fam.Pod(web), 80)},
		} {
			from := e2etest.Place(w.Client())
			if x.From != nil {
				from = x.From
			}
			if err := e2etest.BulkClient(from, "tcp"+fam.Suffix, x.To); err != nil {
				t.Errorf("%s: %v", x.Name, err)
			}
		}
	})
}
