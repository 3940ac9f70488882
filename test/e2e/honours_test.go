// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A Service address on a dummy device, as kube-proxy's IPVS mode has them, keeps its traffic: a hostPort
// with the same number is for the node's addresses only (CVE-2019-9946).
func TestPrivilegedVIPOnDummyDevice(t *testing.T) {
	t.Parallel()
	require.Link(t, "dummy")
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	sh(t, w.Node, "ip link add kube-ipvs0 type dummy")
	for _, fam := range families() {
		sh(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev kube-ipvs0", virtualIP(fam), virtualIP(fam).BitLen()))
	}
	sh(t, w.Node, programs.Path("sluice")+" resync")
	for _, fam := range families() { // bound: a datagram socket without an address answers from whichever lies nearest
		serveFamily(t, w.Node, fam.suffix, "service", at(virtualIP(fam), 8080))
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, from := range []place{w.Client(), app, w.Node} {
			if got := ask(t, from, proto, at(virtualIP(fam), 8080)); got.name != "service" {
				t.Errorf("answered by %s, want service", got.name)
			}
			if got := ask(t, from, proto, at(fam.node(w.Client()), 8080)); got.name != "web" {
				t.Errorf("the node's address: answered by %s, want web", got.name)
			}
		}
	})
}

// An address that comes later is taken in by "sluice resync" and by the next verb.
func TestPrivilegedLateAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	serve(t, w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	for i, learn := range []func(){
		func() { sh(t, w.Node, programs.Path("sluice")+" resync") },
		func() { w.add(rt, "next") },
	} {
		late := map[string]string{"4": fmt.Sprintf("192.0.2.%d", 71+i), "6": fmt.Sprintf("2001:db8:1::%d", 71+i)}
		sh(t, w.Node, "ip addr add "+late["4"]+"/24 dev eth0")
		sh(t, w.Node, "ip addr add "+late["6"]+"/64 dev eth0 nodad")
		learn()
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			for _, from := range []place{w.Client(), w.Node} {
				if got := ask(t, from, proto, at(netip.MustParseAddr(late[fam.suffix]), 8080)); got.name != "web" {
					t.Errorf("answered by %s, want web", got.name)
				}
			}
		})
	}
}

// elsewhere is an address that serveElsewhere gives to both clients, so that the answer tells which way a packet took.
func elsewhere(fam family) netip.Addr {
	return netip.MustParseAddr(map[string]string{"4": "203.0.113.9", "6": "2001:db8:ff::9"}[fam.suffix])
}

func (w *world) serveElsewhere(ports ...uint16) {
	w.t.Helper()
	for _, c := range w.Clients {
		for _, fam := range families() {
			a := elsewhere(fam)
			nodad := map[string]string{"4": "", "6": " nodad"}[fam.suffix]
			sh(w.t, c, fmt.Sprintf("ip addr add %s/%d dev lo%s", a, a.BitLen(), nodad))
			for _, port := range ports {
				serveFamily(w.t, c, fam.suffix, c.Name, at(a, port))
			}
		}
	}
}

// Routing by mark decides about a pod's connections, also about those that have been learned.
func TestPrivilegedPolicyRouting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	app := w.add(w.runtime(net0()), "app")
	nft(t, w.Node, "table inet admin {\nchain pre {\ntype filter hook prerouting priority -150;\nmeta l4proto { tcp, udp } th dport 9001 meta mark set meta mark or 0x100\n}\n}\n")
	w.serveElsewhere(9000, 9001)
	for _, fam := range families() {
		sh(t, w.Node, fmt.Sprintf("ip -%s rule add fwmark 0x100/0x100 table 100", fam.suffix))
		sh(t, w.Node, fmt.Sprintf("ip -%s route add default via %s dev %s table 100", fam.suffix, fam.client(w.Clients[1]), w.Clients[1].Uplink.Name))
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for range 3 {
			for port, c := range map[uint16]*netlab.Client{9000: w.Clients[0], 9001: w.Clients[1]} {
				got := ask(t, app, proto, at(elsewhere(fam), port))
				if got.name != c.Name || got.peer.Addr() != fam.node(c) {
					t.Errorf("%d: answered by %s, which saw %s; want %s, %s", port, got.name, got.peer, c.Name, fam.node(c))
				}
			}
		}
	})
}

// When an uplink goes down, what is learned by it does not hold what can go another way.
func TestPrivilegedUplinkDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	second := w.Clients[1]
	w.serveElsewhere(9000)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, web, proto, at(elsewhere(fam), 9000)); got.name != w.Clients[0].Name {
			t.Errorf("answered by %s, want %s", got.name, w.Clients[0].Name)
		}
	})
	sh(t, w.Node, "ip link set "+w.Clients[0].Uplink.Name+" down")
	for _, fam := range families() {
		sh(t, w.Node, fmt.Sprintf("ip -%s route replace default via %s dev %s", fam.suffix, fam.client(second), second.Uplink.Name))
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, web, proto, at(elsewhere(fam), 9000))
		if got.name != second.Name || got.peer.Addr() != fam.node(second) {
			t.Errorf("answered by %s, which saw %s; want %s, %s", got.name, got.peer, second.Name, fam.node(second))
		}
		for _, from := range []place{second, w.Node} {
			if got := ask(t, from, proto, at(fam.node(second), 8080)); got.name != "web" {
				t.Errorf("hostPort: answered by %s", got.name)
			}
		}
	})
}

// Who decides about forwarding decides about hairpin too; the firewall plugin's mark admits it.
func TestPrivilegedHairpinIsForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"admitMark": "0x1000"}`)
	open, closed := net0(), net1()
	closed.plugins = []string{"portmap"} // nobody admits its pods
	web := w.add(w.runtime(open), "web", tcp(8080, 80), udp(8080, 80))
	sibling := w.add(w.runtime(open), "sibling")
	rt := w.runtime(closed)
	lone, other := w.add(rt, "lone", tcp(8081, 80), udp(8081, 80)), w.add(rt, "other")
	serve(t, web, "web", ":80")
	serve(t, lone, "lone", ":80")
	node := func(fam family) netip.Addr { return fam.node(w.Client()) }
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, other, proto, at(node(fam), 8081))
	})
	nft(t, w.Node, "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, from := range []place{sibling, web} {
			if got := ask(t, from, proto, at(node(fam), 8080)); got.name != "web" {
				t.Errorf("answered by %s, want web", got.name)
			}
		}
		refused(t, other, proto, at(node(fam), 8081))
	})
}

// A main plugin that is not ours, and whose result names nothing but a device of the node.
func TestPrivilegedStrangersResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	p := w.Node.PodT(t, "odd")
	sh(t, w.Node, "ip link add odd0 type veth peer name eth0 netns odd")
	for _, line := range []string{"ip link set odd0 up", "ip addr add 10.9.0.1/24 dev odd0", "ip addr add fd00:9::1/64 dev odd0 nodad"} {
		sh(t, w.Node, line)
	}
	for _, line := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 10.9.0.2/24 dev eth0", "ip addr add fd00:9::2/64 dev eth0 nodad",
		"ip route add default via 10.9.0.1", "ip -6 route add default via fd00:9::1",
	} {
		sh(t, p, line)
	}
	serve(t, p, "odd", ":80")
	env := map[string]string{"CNI_CONTAINERID": "odd", "CNI_NETNS": p.Path}
	stdin := conf(attributes{
		"cniVersion": "1.1.0", "name": "odd", "type": "portmap",
		"prevResult": attributes{
			"cniVersion": "1.1.0", "interfaces": []attributes{{"name": "odd0"}},
			"ips": []attributes{{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}, {"address": "fd00:9::2/64", "gateway": "fd00:9::1"}},
		},
		"runtimeConfig": attributes{"portMappings": []mapping{tcp(8080, 80), udp(8080, 80)}},
	}, nil)
	if out, err := w.call("portmap", "ADD", env, stdin); err != nil {
		t.Fatalf("ADD: %v\n%s", err, out)
	}
	if out, err := w.call("portmap", "CHECK", env, stdin); err != nil {
		t.Errorf("CHECK: %v\n%s", err, out)
	}
	whoIs(t, w, "odd")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, from := range []place{w.Node, p} {
			if got := ask(t, from, proto, at(fam.node(w.Client()), 8080)); got.name != "odd" {
				t.Errorf("answered by %s", got.name)
			}
		}
	})
	if out, err := w.call("portmap", "DEL", env, stdin); err != nil {
		t.Errorf("DEL: %v\n%s", err, out)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
}
