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

// An address that has moved to another node is answered there, though the programs do not know it yet. The same holds for a hostPort
// whose hostIP is on another node.
func TestPrivilegedAddressMoved(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	moving := func(fam e2etest.Family) netip.Addr {
		return netip.MustParseAddr(map[string]string{"4": "203.0.113.7", "6": "2001:db8:ff::7"}[fam.Suffix])
	}
	holder := w.Clients[1]
	for _, fam := range e2etest.Families() {
		a := moving(fam)
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev eth0%s", a, a.BitLen(), e2etest.NoDAD(a.Is6())))
		e2etest.MustRun(t, w.Client(), fmt.Sprintf("ip -%s route replace default via %s", fam.Suffix, fam.Node(w.Client())))
	}
	standby := []e2etest.PortMapping{}
	for _, fam := range e2etest.Families() {
		standby = append(standby, e2etest.TCP(9090, 80).OnAddress(elsewhere(fam)), e2etest.UDP(9090, 80).OnAddress(elsewhere(fam)))
	}
	web := w.AddPod(rt, "web", append(standby, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))...)
	app := w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	from := map[string]e2etest.Place{"client": w.Client(), "pod": app}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for name, place := range from {
			if got := e2etest.Ask(t, place, proto, e2etest.At(moving(fam), 8080)); got.Server != "web" {
				t.Errorf("%s: before it moves %s answers, want web", name, got.Server)
			}
		}
	})
	for _, fam := range e2etest.Families() {
		a := moving(fam)
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr del %s/%d dev eth0", a, a.BitLen()))
		for _, to := range []netip.Addr{a, elsewhere(fam)} {
			e2etest.MustRun(t, holder, fmt.Sprintf("ip addr add %s/%d dev lo%s", to, to.BitLen(), e2etest.NoDAD(to.Is6())))
			e2etest.MustRun(t, holder, fmt.Sprintf("ip -%s route replace default via %s", fam.Suffix, fam.Node(holder)))
			e2etest.MustRun(t, w.Node, fmt.Sprintf("ip -%s route replace %s via %s", fam.Suffix, to, fam.Client(holder)))
			for _, port := range []uint16{8080, 9090} {
				e2etest.ServeFamily(t, holder, fam.Suffix, "holder", e2etest.At(to, port))
			}
		}
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for name, place := range from {
			for _, to := range []string{e2etest.At(moving(fam), 8080), e2etest.At(elsewhere(fam), 9090)} {
				if got := e2etest.Ask(t, place, proto, to); got.Server != "holder" {
					t.Errorf("%s to %s: %s answers, want holder", name, to, got.Server)
				}
			}
			if got := e2etest.Ask(t, place, proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "web" {
				t.Errorf("%s to the node: %s answers, want web", name, got.Server)
			}
		}
	}) // Programs of sockets cannot ask the FIB. What a process of the node asks for goes to the pod until the next look, and no longer.
	fromNode := func(want string) {
		t.Helper()
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, w.Node, proto, e2etest.At(moving(fam), 8080)); got.Server != want {
				t.Errorf("the node: %s answers, want %s", got.Server, want)
			}
			if got := e2etest.Ask(t, w.Node, proto, e2etest.At(elsewhere(fam), 9090)); got.Server != "holder" {
				t.Errorf("the node to a hostIP of another host: %s answers, want holder", got.Server)
			}
		})
	}
	fromNode("web")
	e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
	fromNode("holder")
}
