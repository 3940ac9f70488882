// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Pods on one of the node's interfaces reach each other and the neighbours of
// the node, and are reached by them, at once and in both families.
func TestPrivilegedLAN(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, plugin string
		extra        e2etest.Attributes
		alone        bool // pods do not reach each other
		routed       bool // not on the uplink's subnets
	}{
		{"macvlan bridge", "macvlan", e2etest.Attributes{"mode": "bridge"}, false, false},
		{"macvlan private", "macvlan", e2etest.Attributes{"mode": "private"}, true, false},
		{"ipvlan l2", "ipvlan", nil, false, false},
		{"ipvlan l3", "ipvlan", e2etest.Attributes{"mode": "l3"}, false, true},
		{"ipvlan l3s", "ipvlan", e2etest.Attributes{"mode": "l3s"}, false, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Link(t, tc.plugin)
			w := e2etest.NewWorld(t)
			n := e2etest.LANNetwork(tc.plugin, tc.extra)
			if tc.routed { // by the node, which no neighbour asks for the pods' addresses
				n.Subnets, n.IPAM = []string{"10.88.0.0/24", "fd00:88::/64"}, nil
			}
			rt := w.Runtime(n)
			a, b := w.AddPod(rt, "a"), w.AddPod(rt, "b")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			e2etest.Serve(t, b, "b", ":80")
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Client(w.Client()), 9000)); got.Server != "client" || got.Peer.Addr() != fam.Pod(a) {
					t.Errorf("%s saw %s, want client to see %s", got.Server, got.Peer, fam.Pod(a))
				}
				if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(b), 80)); got.Server != "b" || got.Peer.Addr() != fam.Client(w.Client()) {
					t.Errorf("%s saw %s, want b to see the client", got.Server, got.Peer)
				}
				if tc.alone {
					return
				}
				if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80)); got.Server != "b" || got.Peer.Addr() != fam.Pod(a) {
					t.Errorf("%s saw %s, want b to see %s", got.Server, got.Peer, fam.Pod(a))
				}
			})
			if tc.alone {
				e2etest.AssertNoAnswer(t, a, "udp", e2etest.At(b.IP4, 80))
			}
		})
	}
}

// A pod in a VLAN talks to who is in it, tagged on the wire.
func TestPrivilegedVLANPod(t *testing.T) {
	t.Parallel()
	require.Link(t, "vlan")
	w := e2etest.NewWorld(t)
	n := e2etest.LANNetwork("vlan", e2etest.Attributes{"vlanId": 100})
	n.IPAM = e2etest.Attributes{"ranges": []any{[]e2etest.Attributes{{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.100"}}, []e2etest.Attributes{{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::100"}}}}
	for _, line := range []string{
		"ip link add link eth0 name tagged type vlan id 100", "ip addr add 10.77.0.1/24 dev tagged",
		"ip addr add fd00:77::1/64 dev tagged nodad", "ip link set tagged up",
	} {
		e2etest.MustRun(t, w.Client(), line)
	}
	p := w.AddPod(w.Runtime(n), "app")
	e2etest.Serve(t, p, "app", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	there := map[string]netip.Addr{"IPv4": netip.MustParseAddr("10.77.0.1"), "IPv6": netip.MustParseAddr("fd00:77::1")}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(p), 80)); got.Server != "app" || got.Peer.Addr() != there[fam.Name] {
			t.Errorf("%s saw %s, want app to see %s", got.Server, got.Peer, there[fam.Name])
		}
		if got := e2etest.Ask(t, p, proto, e2etest.At(there[fam.Name], 9000)); got.Server != "client" || got.Peer.Addr() != fam.Pod(p) {
			t.Errorf("%s saw %s, want client to see %s", got.Server, got.Peer, fam.Pod(p))
		}
	})
}

// A dummy holds addresses that the pod's own processes use.
func TestPrivilegedDummyPod(t *testing.T) {
	t.Parallel()
	require.Link(t, "dummy")
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Network{Main: "dummy", NoMasq: true, Plugins: []string{}}), "app")
	e2etest.MustRun(t, p, "ip link set lo up")
	e2etest.Serve(t, p, "app", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, p, proto, e2etest.At(fam.Pod(p), 80)); got.Server != "app" || got.Peer.Addr() != fam.Pod(p) {
			t.Errorf("%s saw %s", got.Server, got.Peer)
		}
	})
}

// Through a runtime, with and without the namespace: CHECK is content and DEL
// leaves nothing.
func TestPrivilegedLANLife(t *testing.T) {
	t.Parallel()
	for plugin, extra := range map[string]e2etest.Attributes{"macvlan": nil, "ipvlan": nil, "vlan": {"vlanId": 5}, "dummy": nil} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			require.Link(t, plugin)
			w := e2etest.NewWorld(t)
			rt := w.Runtime(e2etest.LANNetwork(plugin, extra))
			before := w.Warmup(rt)
			p := w.AddPod(rt, "app")
			if err := p.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			p.MustDel()
			w.AssertNothingLeft(before)
			q := w.AddPod(rt, "gone")
			if err := q.Delete(); err != nil {
				t.Fatal(err)
			}
			q.MustDel()
			q.MustDel()
			w.AssertNothingLeft(before)
		})
	}
}
