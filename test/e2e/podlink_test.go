// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// onLAN is a network of interfaces on the node's eth0, with addresses of the
// uplink's own subnets, so that the client is a neighbour.
func onLAN(plugin string, extra attributes) network {
	n := network{main: plugin, noMasq: true, plugins: []string{}, extra: attributes{"master": "eth0"}, ipam: attributes{
		"ranges": []any{
			[]attributes{{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.100", "gateway": "192.0.2.2"}},
			[]attributes{{"subnet": "2001:db8:1::/64", "rangeStart": "2001:db8:1::100", "gateway": "2001:db8:1::2"}},
		},
	}}
	for k, v := range extra {
		n.extra[k] = v
	}
	return n
}

// Pods on one of the node's interfaces reach each other and the neighbours of
// the node, and are reached by them, at once and in both families.
func TestPrivilegedLAN(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, plugin string
		extra        attributes
		alone        bool // pods do not reach each other
		routed       bool // not on the uplink's subnets
	}{
		{"macvlan bridge", "macvlan", attributes{"mode": "bridge"}, false, false},
		{"macvlan private", "macvlan", attributes{"mode": "private"}, true, false},
		{"ipvlan l2", "ipvlan", nil, false, false},
		{"ipvlan l3", "ipvlan", attributes{"mode": "l3"}, false, true},
		{"ipvlan l3s", "ipvlan", attributes{"mode": "l3s"}, false, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Link(t, tc.plugin)
			w := newWorld(t)
			n := onLAN(tc.plugin, tc.extra)
			if tc.routed { // by the node, which nobody asks for the pods' addresses
				n.subnets, n.ipam = []string{"10.88.0.0/24", "fd00:88::/64"}, nil
			}
			rt := w.runtime(n)
			a, b := w.add(rt, "a"), w.add(rt, "b")
			serve(t, w.Client(), "client", ":9000")
			serve(t, b, "b", ":80")
			eachTransport(t, func(t *testing.T, fam family, proto string) {
				if got := ask(t, a, proto, at(fam.client(w.Client()), 9000)); got.name != "client" || got.peer.Addr() != fam.pod(a) {
					t.Errorf("%s saw %s, want client to see %s", got.name, got.peer, fam.pod(a))
				}
				if got := ask(t, w.Client(), proto, at(fam.pod(b), 80)); got.name != "b" || got.peer.Addr() != fam.client(w.Client()) {
					t.Errorf("%s saw %s, want b to see the client", got.name, got.peer)
				}
				if tc.alone {
					return
				}
				if got := ask(t, a, proto, at(fam.pod(b), 80)); got.name != "b" || got.peer.Addr() != fam.pod(a) {
					t.Errorf("%s saw %s, want b to see %s", got.name, got.peer, fam.pod(a))
				}
			})
			if tc.alone {
				refused(t, a, "udp", at(b.IP4, 80))
			}
		})
	}
}

// A pod in a VLAN talks to who is in it, tagged on the wire.
func TestPrivilegedVLANPod(t *testing.T) {
	t.Parallel()
	require.Link(t, "vlan")
	w := newWorld(t)
	n := onLAN("vlan", attributes{"vlanId": 100})
	n.ipam = attributes{"ranges": []any{[]attributes{{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.100"}}, []attributes{{"subnet": "fd00:77::/64", "rangeStart": "fd00:77::100"}}}}
	for _, line := range []string{
		"ip link add link eth0 name tagged type vlan id 100", "ip addr add 10.77.0.1/24 dev tagged",
		"ip addr add fd00:77::1/64 dev tagged nodad", "ip link set tagged up",
	} {
		sh(t, w.Client(), line)
	}
	p := w.add(w.runtime(n), "app")
	serve(t, p, "app", ":80")
	serve(t, w.Client(), "client", ":9000")
	there := map[string]netip.Addr{"IPv4": netip.MustParseAddr("10.77.0.1"), "IPv6": netip.MustParseAddr("fd00:77::1")}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, w.Client(), proto, at(fam.pod(p), 80)); got.name != "app" || got.peer.Addr() != there[fam.name] {
			t.Errorf("%s saw %s, want app to see %s", got.name, got.peer, there[fam.name])
		}
		if got := ask(t, p, proto, at(there[fam.name], 9000)); got.name != "client" || got.peer.Addr() != fam.pod(p) {
			t.Errorf("%s saw %s, want client to see %s", got.name, got.peer, fam.pod(p))
		}
	})
}

// A dummy holds addresses that the pod's own processes use.
func TestPrivilegedDummyPod(t *testing.T) {
	t.Parallel()
	require.Link(t, "dummy")
	w := newWorld(t)
	p := w.add(w.runtime(network{main: "dummy", noMasq: true, plugins: []string{}}), "app")
	sh(t, p, "ip link set lo up")
	serve(t, p, "app", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, p, proto, at(fam.pod(p), 80)); got.name != "app" || got.peer.Addr() != fam.pod(p) {
			t.Errorf("%s saw %s", got.name, got.peer)
		}
	})
}

// Through a runtime, with and without the namespace: CHECK is content and DEL
// leaves nothing.
func TestPrivilegedLANLife(t *testing.T) {
	t.Parallel()
	for plugin, extra := range map[string]attributes{"macvlan": nil, "ipvlan": nil, "vlan": {"vlanId": 5}, "dummy": nil} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			require.Link(t, plugin)
			w := newWorld(t)
			rt := w.runtime(onLAN(plugin, extra))
			before := w.settled(rt)
			p := w.add(rt, "app")
			if err := p.check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			p.mustDel()
			w.assertNothingLeft(before)
			q := w.add(rt, "gone")
			if err := q.Delete(); err != nil {
				t.Fatal(err)
			}
			q.mustDel()
			q.mustDel()
			w.assertNothingLeft(before)
		})
	}
}
