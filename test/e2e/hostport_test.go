// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A hostPort answers on the node's address, and the pod sees who asked.
func TestPrivilegedHostPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
		if got.name != "web" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want web, %s", got.name, got.peer, fam.client(w.Client()))
		}
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 80))
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8081))
	})
}

// A hostPort without hostIP answers on every address of the node, from
// whichever side.
func TestPrivilegedHostPortOnEveryAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	p := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, c := range w.Clients {
			got := ask(t, c, proto, at(fam.node(c), 8080))
			if got.name != "web" || got.peer.Addr() != fam.client(c) {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", c.Name, got.name, got.peer, fam.client(c))
			}
		}
		// The second address through the first device.
		got := ask(t, w.Clients[0], proto, at(fam.node(w.Clients[1]), 8080))
		if got.name != "web" || got.peer.Addr() != fam.client(w.Clients[0]) {
			t.Errorf("other address: answered by %s, which saw %s; want web, %s", got.name, got.peer, fam.client(w.Clients[0]))
		}
	})
}

// A hostPort with hostIP answers there and nowhere else.
func TestPrivilegedHostPortWithHostIP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(net0())
	first, second := w.Clients[0], w.Clients[1]
	eachFamily(t, func(t *testing.T, fam family) {
		name := "web" + fam.suffix
		p := w.add(rt, name, tcp(8081, 80).on(fam.node(first)), udp(8081, 80).on(fam.node(first)))
		serve(t, p, name, ":80")
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(proto, func(t *testing.T) {
				for _, from := range []*netlab.Client{first, second} {
					if got := ask(t, from, proto, at(fam.node(first), 8081)); got.name != name {
						t.Errorf("from %s: answered by %s, want %s", from.Name, got.name, name)
					}
					refused(t, from, proto, at(fam.node(second), 8081))
				}
			})
		}
		p.mustDel() // the next family uses the port again
	})
}

// One port number can lead to different pods by transport and by address.
func TestPrivilegedSamePortDifferentPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(net0())
	var want []struct{ proto, addr, name string }
	for _, fam := range families() {
		for i, c := range w.Clients {
			for _, proto := range []string{"tcp", "udp"} {
				name := "p" + fam.suffix + proto + string(rune('a'+i))
				m := mapping{HostPort: 9000, ContainerPort: 7, Protocol: proto}
				serve(t, w.add(rt, name, m.on(fam.node(c))), name, ":7")
				want = append(want, struct{ proto, addr, name string }{proto, at(fam.node(c), 9000), name})
			}
		}
	}
	for _, x := range want {
		if got := ask(t, w.Client(), x.proto, x.addr); got.name != x.name {
			t.Errorf("%s %s: answered by %s, want %s", x.proto, x.addr, got.name, x.name)
		}
	}
}

// "0.0.0.0" and "::" mean any address of their own family only.
func TestPrivilegedUnspecifiedHostIP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	four := tcp(8080, 80)
	four.HostIP = "0.0.0.0"
	six := tcp(8080, 80)
	six.HostIP = "::"
	serve(t, w.add(rt, "four", four), "four", ":80")
	serve(t, w.add(rt, "six", six), "six", ":80")
	for _, x := range []struct {
		fam  family
		want string
	}{{families()[0], "four"}, {families()[1], "six"}} {
		if got := ask(t, w.Client(), "tcp", at(x.fam.node(w.Client()), 8080)); got.name != x.want {
			t.Errorf("%s: answered by %s, want %s", x.fam.name, got.name, x.want)
		}
	}
}

// Several mappings of one pod, and one container port behind two host ports.
func TestPrivilegedManyPortsOfOnePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ports []mapping
	for i := range 20 {
		ports = append(ports, tcp(10000+i, 80), udp(10000+i, 80))
	}
	serve(t, w.add(w.runtime(net0()), "web", ports...), "web", ":80")
	for i := range uint16(20) {
		for _, fam := range families() {
			ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 10000+i))
			ask(t, w.Client(), "udp", at(fam.node(w.Client()), 10000+i))
		}
	}
}

// A hostPort must not swallow a port of the same number elsewhere: what a
// client serves itself, what lies behind the node, and what the node serves on
// another port.
func TestPrivilegedHostPortIsOnlyTheNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(net0())
	serve(t, w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	other := w.add(rt, "other")
	for _, c := range w.Clients {
		serve(t, c, c.Name, ":8080")
	}
	serve(t, w.Node, "node", ":8081")
	first, second := w.Clients[0], w.Clients[1]
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		tests := []struct {
			from place
			to   string
			want string
		}{
			{other, at(fam.client(first), 8080), first.Name},
			{first, at(fam.client(second), 8080), second.Name},
			{second, at(fam.client(first), 8080), first.Name},
			{first, at(fam.node(first), 8081), "node"},
			{first, at(fam.node(second), 8080), "web"},
		}
		for _, tt := range tests {
			if got := ask(t, tt.from, proto, tt.to); got.name != tt.want {
				t.Errorf("who wants %s gets %s, want %s", tt.to, got.name, tt.want)
			}
		}
	})
}

// Nobody answers on a hostPort after DEL, neither new clients nor old ones.
func TestPrivilegedHostPortGoesWithDel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
	p.mustDel()
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
}
