// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// An address that comes later is taken in by "sluice resync" and by the next verb.
func TestPrivilegedLateAddress(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
	for i, learn := range []func(){
		func() { e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync") },
		func() { w.AddPod(rt, "next") },
	} {
		late := map[string]string{"4": fmt.Sprintf("192.0.2.%d", 71+i), "6": fmt.Sprintf("2001:db8:1::%d", 71+i)}
		e2etest.MustRun(t, w.Node, "ip addr add "+late["4"]+"/24 dev eth0")
		e2etest.MustRun(t, w.Node, "ip addr add "+late["6"]+"/64 dev eth0 nodad")
		learn()
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			for _, from := range []e2etest.Place{w.Client(), w.Node} {
				if got := e2etest.Ask(t, from, proto, e2etest.At(netip.MustParseAddr(late[fam.Suffix]), 8080)); got.Server != "web" {
					t.Errorf("answered by %s, want web", got.Server)
				}
			}
		})
	}
}

// When an uplink goes down, what is learned by it does not hold what can go another way.
func TestPrivilegedUplinkDown(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	second := w.Clients[1]
	serveElsewhere(w, 9000)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, web, proto, e2etest.At(elsewhere(fam), 9000)); got.Server != w.Clients[0].Name {
			t.Errorf("answered by %s, want %s", got.Server, w.Clients[0].Name)
		}
	})
	e2etest.MustRun(t, w.Node, "ip link set "+w.Clients[0].Uplink.Name+" down")
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s route replace default via %s dev %s", fam.Suffix, fam.Client(second), second.Uplink.Name))
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, web, proto, e2etest.At(elsewhere(fam), 9000))
		if got.Server != second.Name || got.Peer.Addr() != fam.Node(second) {
			t.Errorf("answered by %s, which saw %s; want %s, %s", got.Server, got.Peer, second.Name, fam.Node(second))
		}
		for _, from := range []e2etest.Place{second, w.Node} {
			if got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(second), 8080)); got.Server != "web" {
				t.Errorf("hostPort: answered by %s", got.Server)
			}
		}
	})
}
