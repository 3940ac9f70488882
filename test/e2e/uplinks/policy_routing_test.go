// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// elsewhere is an address that serveElsewhere gives to both clients, so that the answer tells which way a packet took.
func elsewhere(fam e2etest.Family) netip.Addr {
	return netip.MustParseAddr(map[string]string{"4": "203.0.113.9", "6": "2001:db8:ff::9"}[fam.Suffix])
}

func serveElsewhere(w *e2etest.World, ports ...uint16) {
	w.T.Helper()
	for _, c := range w.Clients {
		for _, fam := range e2etest.Families() {
			a := elsewhere(fam)
			nodad := map[string]string{"4": "", "6": " nodad"}[fam.Suffix]
			e2etest.MustRun(w.T, c, fmt.Sprintf("ip addr add %s/%d dev lo%s", a, a.BitLen(), nodad))
			for _, port := range ports {
				e2etest.ServeFamily(w.T, c, fam.Suffix, c.Name, e2etest.At(a, port))
			}
		}
	}
}

// Routing by mark decides about a pod's connections, also about those that have been learned.
func TestPrivilegedPolicyRouting(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	e2etest.LoadNFT(t, w.Node, "table inet admin {\nchain pre {\ntype filter hook prerouting priority -150;\nmeta l4proto { tcp, udp } th dport 9001 meta mark set meta mark or 0x100\n}\n}\n")
	serveElsewhere(w, 9000, 9001)
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s rule add fwmark 0x100/0x100 table 100", fam.Suffix))
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s route add default via %s dev %s table 100", fam.Suffix, fam.Client(w.Clients[1]), w.Clients[1].Uplink.Name))
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for range 3 {
			for port, c := range map[uint16]*netlab.Client{9000: w.Clients[0], 9001: w.Clients[1]} {
				got := e2etest.Ask(t, app, proto, e2etest.At(elsewhere(fam), port))
				if got.Server != c.Name || got.Peer.Addr() != fam.Node(c) {
					t.Errorf("%d: answered by %s, which saw %s; want %s, %s", port, got.Server, got.Peer, c.Name, fam.Node(c))
				}
			}
		}
	})
}

// Routing by mark leads by another gateway of the same device.
func TestPrivilegedPolicyRoutingSameDevice(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	c := w.Client()
	fam := e2etest.Families()[0]
	gwb := w.Node.PodT(t, "gwb")
	e2etest.MustRun(t, gwb, "ip link set lo up")
	e2etest.MustRun(t, c, "ip link add link eth0 name gwb type macvlan mode bridge")
	e2etest.MustRun(t, c, "ip link set gwb netns "+gwb.ProcPath())
	e2etest.MustRun(t, gwb, "ip link set gwb up")
	e2etest.MustRun(t, gwb, "ip addr add 192.0.2.99/24 dev gwb")
	a := elsewhere(fam)
	for _, ns := range []interface{ Do(func() error) error }{c, gwb} {
		e2etest.MustRun(t, ns, fmt.Sprintf("ip addr add %s/32 dev lo", a))
	}
	e2etest.ServeFamily(t, c, "4", "first", e2etest.At(a, 9000))
	e2etest.ServeFamily(t, gwb, "4", "second", e2etest.At(a, 9000))
	e2etest.LoadNFT(t, w.Node, "table inet admin {\nchain pre {\ntype filter hook prerouting priority -150;\nmeta l4proto { tcp, udp } th dport 9000 meta mark set meta mark or 0x100\n}\n}\n")
	e2etest.MustRun(t, w.Node, "ip -4 rule add fwmark 0x100/0x100 table 100")
	e2etest.MustRun(t, w.Node, "ip -4 route add default via 192.0.2.99 dev eth0 table 100")
	for _, proto := range []string{"udp", "tcp"} {
		k, err := e2etest.Dial(app, proto+"4", "", e2etest.At(a, 9000))
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if k.Answer.Server != "second" {
			t.Fatalf("%s: answered by %s, want second", proto, k.Answer.Server)
		}
		for i := range 20 {
			if err := k.Send(fmt.Sprintf("word %d", i)); err != nil {
				t.Fatalf("%s: word %d: %v", proto, i, err)
			}
			if k.Answer.Server != "second" {
				t.Errorf("%s: word %d: answered by %s, want second", proto, i, k.Answer.Server)
				break
			}
			time.Sleep(15 * time.Millisecond)
		}
	}
}
