// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A hostPort answers on the node's address, and the pod sees who asked.
func TestPrivilegedHostPort(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
		if got.Server != "web" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("answered by %s, which saw %s; want web, %s", got.Server, got.Peer, fam.Client(w.Client()))
		}
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 80))
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8081))
	})
}

// A hostPort without hostIP answers on every address of the node, from
// whichever side.
func TestPrivilegedHostPortOnEveryAddress(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, c := range w.Clients {
			got := e2etest.Ask(t, c, proto, e2etest.At(fam.Node(c), 8080))
			if got.Server != "web" || got.Peer.Addr() != fam.Client(c) {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", c.Name, got.Server, got.Peer, fam.Client(c))
			}
		}
		// The second address through the first device.
		got := e2etest.Ask(t, w.Clients[0], proto, e2etest.At(fam.Node(w.Clients[1]), 8080))
		if got.Server != "web" || got.Peer.Addr() != fam.Client(w.Clients[0]) {
			t.Errorf("other address: answered by %s, which saw %s; want web, %s", got.Server, got.Peer, fam.Client(w.Clients[0]))
		}
	})
}

// A hostPort with hostIP answers there and nowhere else.
func TestPrivilegedHostPortWithHostIP(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	first, second := w.Clients[0], w.Clients[1]
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		name := "web" + fam.Suffix
		p := w.AddPod(rt, name, e2etest.TCP(8081, 80).OnAddress(fam.Node(first)), e2etest.UDP(8081, 80).OnAddress(fam.Node(first)))
		e2etest.Serve(t, p, name, ":80")
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(proto, func(t *testing.T) {
				for _, from := range []*netlab.Client{first, second} {
					if got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(first), 8081)); got.Server != name {
						t.Errorf("from %s: answered by %s, want %s", from.Name, got.Server, name)
					}
					e2etest.AssertNoAnswer(t, from, proto, e2etest.At(fam.Node(second), 8081))
				}
			})
		}
		p.MustDel() // the next family uses the port again
	})
}

// One port number can lead to different pods by transport and by address.
func TestPrivilegedSamePortDifferentPods(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	var want []struct{ proto, addr, name string }
	for _, fam := range e2etest.Families() {
		for i, c := range w.Clients {
			for _, proto := range []string{"tcp", "udp"} {
				name := "p" + fam.Suffix + proto + string(rune('a'+i))
				m := e2etest.PortMapping{HostPort: 9000, ContainerPort: 7, Protocol: proto}
				e2etest.Serve(t, w.AddPod(rt, name, m.OnAddress(fam.Node(c))), name, ":7")
				want = append(want, struct{ proto, addr, name string }{proto, e2etest.At(fam.Node(c), 9000), name})
			}
		}
	}
	for _, x := range want {
		if got := e2etest.Ask(t, w.Client(), x.proto, x.addr); got.Server != x.name {
			t.Errorf("%s %s: answered by %s, want %s", x.proto, x.addr, got.Server, x.name)
		}
	}
}

// "0.0.0.0" and "::" mean any address of their own family only.
func TestPrivilegedUnspecifiedHostIP(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	four := e2etest.TCP(8080, 80)
	four.HostIP = "0.0.0.0"
	six := e2etest.TCP(8080, 80)
	six.HostIP = "::"
	e2etest.Serve(t, w.AddPod(rt, "four", four), "four", ":80")
	e2etest.Serve(t, w.AddPod(rt, "six", six), "six", ":80")
	for _, x := range []struct {
		fam  e2etest.Family
		want string
	}{{e2etest.Families()[0], "four"}, {e2etest.Families()[1], "six"}} {
		if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(x.fam.Node(w.Client()), 8080)); got.Server != x.want {
			t.Errorf("%s: answered by %s, want %s", x.fam.Name, got.Server, x.want)
		}
	}
}

// Several mappings of one pod, and one container port behind two host ports.
func TestPrivilegedManyPortsOfOnePod(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	var ports []e2etest.PortMapping
	for i := range 20 {
		ports = append(ports, e2etest.TCP(10000+i, 80), e2etest.UDP(10000+i, 80))
	}
	e2etest.Serve(t, w.AddPod(w.Runtime(e2etest.Net0()), "web", ports...), "web", ":80")
	for i := range uint16(20) {
		for _, fam := range e2etest.Families() {
			e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 10000+i))
			e2etest.Ask(t, w.Client(), "udp", e2etest.At(fam.Node(w.Client()), 10000+i))
		}
	}
}

// A hostPort must not swallow a port of the same number elsewhere: what a
// client serves itself, what lies behind the node, and what the node serves on
// another port.
func TestPrivilegedHostPortIsOnlyTheNodes(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
	other := w.AddPod(rt, "other")
	for _, c := range w.Clients {
		e2etest.Serve(t, c, c.Name, ":8080")
	}
	e2etest.Serve(t, w.Node, "node", ":8081")
	first, second := w.Clients[0], w.Clients[1]
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		tests := []struct {
			from e2etest.Place
			to   string
			want string
		}{
			{other, e2etest.At(fam.Client(first), 8080), first.Name},
			{first, e2etest.At(fam.Client(second), 8080), second.Name},
			{second, e2etest.At(fam.Client(first), 8080), first.Name},
			{first, e2etest.At(fam.Node(first), 8081), "node"},
			{first, e2etest.At(fam.Node(second), 8080), "web"},
		}
		for _, tt := range tests {
			if got := e2etest.Ask(t, tt.from, proto, tt.to); got.Server != tt.want {
				t.Errorf("who wants %s gets %s, want %s", tt.to, got.Server, tt.want)
			}
		}
	})
}

// After DEL a hostPort answers neither new clients nor old ones.
func TestPrivilegedHostPortGoesWithDel(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
	p.MustDel()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
}
