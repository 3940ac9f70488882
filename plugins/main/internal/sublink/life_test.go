// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// The whole life of an attachment: what ADD made is there and in the result,
// CHECK agrees, DEL takes it all away and can be repeated.
func TestPrivilegedLife(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		res := s.MustAdd(s.call())
		if len(res.Interfaces) != 1 || len(res.IPs) != 2 || *res.IPs[0].Interface != 0 || *res.IPs[1].Interface != 0 {
			t.Fatalf("result %+v", res)
		}
		l := s.Link(s.pod.NS, "eth0")
		i := res.Interfaces[0]
		if i.Name != "eth0" || i.Mac != l.MAC.String() || i.Sandbox != s.pod.Path || i.Mtu != l.MTU || i.Mtu != 1500 {
			t.Errorf("interface %+v of link %+v", i, l)
		}
		if l.Kind != s.name || !l.Up {
			t.Errorf("link %+v, want a %s that is up", l, s.name)
		}
		if len(res.DNS.Nameservers) != 1 || res.DNS.Nameservers[0] != "10.1.0.53" {
			t.Errorf("DNS %+v, want the IPAM plugin's", res.DNS)
		}
		s.In(s.pod.NS, func(h *rtnl.Handle) error {
			addrs, err := h.AddrsOf(l.Index, rtnl.FamilyAll)
			for _, want := range []string{"10.1.0.2/16", "fd00::2/64"} {
				if !slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.String() == want && !a.Tentative() }) {
					t.Errorf("no usable address %s: %+v", want, addrs)
				}
			}
			return err
		})
		if err := s.Check(s.call(), res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		for range 2 {
			if err := s.Del(s.call()); err != nil {
				t.Errorf("DEL: %v", err)
			}
			s.MustBeClean(s.pod)
		}
	})
}

// What the IPAM plugin says of a route is applied, whole.
func TestPrivilegedRoutes(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		table, scope := 100, 253
		s.IPAM.Answer = func(int) *types100.Result {
			res := plugintest.Answer46(1)
			res.Routes = []*types.Route{
				{Dst: plugintest.CIDR("0.0.0.0/0"), MTU: 1400, AdvMSS: 1360, Priority: 50},
				{Dst: plugintest.CIDR("::/0"), MTU: 1400, AdvMSS: 1340, Priority: 60},
				{Dst: plugintest.CIDR("192.0.2.0/24"), GW: plugintest.IP("10.1.0.9/16", "10.1.0.9").Gateway, Table: &table},
			}
			if s.name != "ipvlan" { // scope of a route by a gateway is universe
				res.IPs[0].Gateway = nil
				res.Routes = append(res.Routes, &types.Route{Dst: plugintest.CIDR("198.51.100.0/24"), Scope: &scope})
			}
			return res
		}
		res := s.MustAdd(s.call())
		out := s.IP(s.pod.NS, "route show table all") + s.IP(s.pod.NS, "-6 route show table all")
		want := []string{"default via fd00::1 dev eth0 metric 60 mtu 1400 advmss 1340", "192.0.2.0/24 via 10.1.0.9 dev eth0 table 100"}
		if s.name == "ipvlan" {
			want = append(want, "default via 10.1.0.1 dev eth0 metric 50 mtu 1400 advmss 1360")
		} else {
			want = append(want, "198.51.100.0/24 dev eth0 scope link", "default dev eth0 metric 50 mtu 1400 advmss 1360")
		}
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(out, "proto boot ", ""), w) && !strings.Contains(out, w) {
				t.Errorf("no route %q in\n%s", w, out)
			}
		}
		if err := s.Check(s.call(), res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		s.IP(s.pod.NS, "-6 route change default via fd00::1 dev eth0 metric 60 mtu 1300")
		plugintest.WantCode(t, s.Check(s.call(), res), 102, "::/0", "1400")
	})
}

// An interface on a master that is in the pod.
func TestPrivilegedLinkInContainer(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.IP(s.pod.NS, "link add m0 type veth peer name m1")
		s.IP(s.pod.NS, "link set m0 up")
		s.IP(s.pod.NS, "link set m1 up")
		call := s.call().With("master", "m0").With("linkInContainer", true)
		res := s.MustAdd(call)
		if l, m := s.Link(s.pod.NS, "eth0"), s.Link(s.pod.NS, "m0"); l.PeerIndex != m.Index || l.PeerNetnsID != -1 {
			t.Errorf("eth0 sits on %d in namespace %d, want m0, %d", l.PeerIndex, l.PeerNetnsID, m.Index)
		}
		if err := s.Check(call, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		plugintest.WantCode(t, s.Check(call.With("linkInContainer", false), res), 102, "on the node")
		if err := s.Del(call); err != nil {
			t.Error(err)
		}
		if got := s.Links(s.pod.NS); slices.Contains(got, "eth0") || !slices.Contains(got, "m0") {
			t.Errorf("the pod has %v", got)
		}
		_, err := s.Add(s.call().With("linkInContainer", true)) // eth0 of the node
		plugintest.WantCode(t, err, 7, "master", "eth0", "in the pod")
	}, onMaster()...)
}

// Without a master, the device of the default route serves: of either family.
func TestPrivilegedDefaultMaster(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		call := s.call().With("master", nil)
		eth0 := s.Link(s.Node.NS, "eth0")
		for _, family := range []string{"-4", "-6"} { // IPv4's goes after the first round
			res := s.MustAdd(call)
			if l := s.Link(s.pod.NS, "eth0"); l.PeerIndex != eth0.Index {
				t.Errorf("sits on %d, want eth0, %d", l.PeerIndex, eth0.Index)
			}
			s.IP(s.Node.NS, family+" route del default")
			if err := s.Check(call, res); err != nil {
				t.Errorf("CHECK after the default route went: %v", err)
			}
			if err := s.Del(call); err != nil {
				t.Errorf("DEL after the default route went: %v", err)
			}
		}
		_, err := s.Add(call)
		plugintest.WantCode(t, err, 7, "master", "default route")
		plugintest.WantCode(t, s.Verb(s.Plug.Status, call), 50, "default route")
		s.MustBeClean(s.pod)
	}, "macvlan", "ipvlan")
}

// A new owner of an address makes itself known to its neighbours.
func TestPrivilegedAnnounce(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		got := sniff(t, s.Client().NS)
		s.MustAdd(s.call())
		mac := s.Link(s.pod.NS, "eth0").MAC
		got.await(t, "gratuitous ARP", func(f []byte) bool { return isGratuitousARP(f, mac, netip.MustParseAddr("10.1.0.2")) })
		got.await(t, "unsolicited advertisement", func(f []byte) bool { return isUnsolicitedNA(f, mac, netip.MustParseAddr("fd00::2")) })
	}, "macvlan")
}

// With enabledad, an address that a neighbour has is refused; without, it is not
// asked for.
func TestPrivilegedDAD(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.IP(s.Client().NS, "addr add fd00::2/64 dev eth0 nodad")
		_, err := s.Add(s.call().With("enabledad", true))
		plugintest.WantCode(t, err, 103, "fd00::2", "in use")
		s.MustBeClean(s.pod)
		s.MustAdd(s.call().With("enabledad", true)) // fd00::3
	}, "macvlan")
}

// Two pods on one master, both with the node's name eth0 for their interface,
// and repeated ADDs of one attachment.
func TestPrivilegedTwoPods(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		other := s.Pod("other")
		second := s.call().With("vlanId", 101)
		second.Container, second.Netns = "c2", other.Path
		s.MustAdd(s.call())
		s.MustAdd(second)
		if err := s.Del(s.call()); err != nil {
			t.Fatal(err)
		}
		if got := s.Links(other.NS); !slices.Contains(got, "eth0") {
			t.Errorf("the other pod has %v", got)
		}
		s.IP(other.NS, "link del eth0") // behind our back: the record is stale
		s.MustAdd(second)
		if err := s.Del(second); err != nil {
			t.Fatal(err)
		}
		s.MustBeClean(s.pod, other)
	})
}
