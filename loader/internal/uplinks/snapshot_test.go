// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// fakeLinks is a node that exists on paper.
type fakeLinks struct {
	links  []rtnl.Link
	addrs  []rtnl.Addr
	routes []rtnl.Route
	rules  []rtnl.Rule
	asked  int
}

var _ Netlink = (*fakeLinks)(nil)

func (f *fakeLinks) LinkByIndex(index int) (rtnl.Link, error) {
	f.asked++
	for _, l := range f.links {
		if l.Index == index {
			return l, nil
		}
	}
	return rtnl.Link{}, fmt.Errorf("link index %d: %w", index, rtnl.ErrNotFound)
}

func (f *fakeLinks) LinkByName(name string) (rtnl.Link, error) {
	for _, l := range f.links {
		if l.Name == name {
			return l, nil
		}
	}
	return rtnl.Link{}, fmt.Errorf("link %q: %w", name, rtnl.ErrNotFound)
}

func (f *fakeLinks) Links() ([]rtnl.Link, error) { return f.links, nil }

func (f *fakeLinks) AddrsOf(index, _ int) (addrs []rtnl.Addr, err error) {
	if _, err := f.LinkByIndex(index); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(f.addrs), func(a rtnl.Addr) bool { return a.LinkIndex != index }), nil
}

func (f *fakeLinks) RouteTo(dst netip.Addr, _ int) (rtnl.Route, error) {
	return rtnl.Route{}, fmt.Errorf("route to %s: %w", dst, rtnl.ErrNotFound)
}

func (f *fakeLinks) Addrs(int) ([]rtnl.Addr, error) { return f.addrs, nil }

func (f *fakeLinks) Rules(int) ([]rtnl.Rule, error) { return f.rules, nil }

func (f *fakeLinks) RoutesWhere(w rtnl.RouteFilter) ([]rtnl.Route, error) {
	var routes []rtnl.Route
	for _, r := range f.routes {
		table := r.Table
		if table == 0 {
			table = rtnl.TableMain
		}
		if table == w.Table && r.Dst.Addr().Is4() == (w.Family == rtnl.FamilyV4) {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

func addr(index int, prefix string) rtnl.Addr {
	return rtnl.Addr{LinkIndex: index, Prefix: netip.MustParsePrefix(prefix), Scope: rtnl.ScopeUniverse}
}

func onPodSide(bridge int) Roles {
	return Roles{HostVeth: func(int) bool { return false }, Routed: func(index int) bool { return index == bridge }}
}

func TestReadNode(t *testing.T) {
	f := &fakeLinks{
		links: []rtnl.Link{
			{Index: 1, Name: "lo", Loopback: true},
			{Index: 2, Name: "eth0", Ethernet: true},
			{Index: 3, Name: "kube-ipvs0", Kind: "dummy", Ethernet: true},
			{Index: 4, Name: "br0", Kind: "bridge", Ethernet: true},
			{Index: 5, Name: "wg0", Kind: "wireguard"},
			{Index: 6, Name: "eth1", Ethernet: true},
		},
		addrs: []rtnl.Addr{
			addr(1, "127.0.0.1/8"), addr(1, "::1/128"), addr(1, "203.0.113.7/32"),
			addr(2, "192.0.2.10/24"), addr(2, "2001:db8::10/64"), addr(2, "fe80::10/64"),
			addr(3, "10.96.0.1/32"), addr(3, "10.96.0.0/12"),
			addr(4, "10.1.0.1/16"), addr(5, "10.8.0.1/24"),
			addr(99, "198.51.100.1/24"), // of a device that has just gone
		},
		routes: []rtnl.Route{
			{LinkIndex: 6, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("::/0")},
			{LinkIndex: 7, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("10.9.0.5/32")},
			{LinkIndex: 8, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("fe80::/64")},
			{LinkIndex: 0, Type: unix.RTN_BLACKHOLE, Dst: netip.MustParsePrefix("10.0.0.0/8")},
		},
	}
	for i := range 250 { // the pods' host ends
		f.addrs = append(f.addrs, addr(100+i, fmt.Sprintf("fe80::%x/64", i+1)), addr(100+i, "10.5.0.1/32")) // the latter on point-to-point links
		f.links = append(f.links, rtnl.Link{Index: 100 + i, Kind: "veth", Ethernet: true})
	}
	n, _, err := Read(f, nil, onPodSide(4), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{2, 6}, slices.Sorted(maps.Keys(n.Uplinks))); diff != "" {
		t.Errorf("uplinks:\n%s", diff)
	}
	addrs := make(map[string]uint32)
	for a, index := range n.Addrs {
		addrs[a.String()] = index
	}
	want := map[string]uint32{"203.0.113.7": 1, "192.0.2.10": 2, "2001:db8::10": 2, "10.1.0.1": 4, "10.8.0.1": 5, "10.5.0.1": 100}
	if diff := cmp.Diff(want, addrs); diff != "" {
		t.Errorf("addresses:\n%s", diff)
	}
	if len(n.Skipped) != 1 || n.Skipped[0].Name != "wg0" {
		t.Errorf("skipped: %+v", n.Skipped)
	}
	if f.asked > 10 {
		t.Errorf("%d links were asked for: the cost grows with the pods", f.asked)
	}
}

// Devices that lead out of the node without a network of their own, and what they masquerade with.
func TestReadNodeSingleAddresses(t *testing.T) {
	failed := addr(1, "2001:db8::dad/128") // another host's
	failed.Flags = unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	old := addr(1, "203.0.113.8/32")
	old.Flags = unix.IFA_F_DEPRECATED
	route := func(index, table int, dst string) rtnl.Route {
		return rtnl.Route{LinkIndex: index, Table: table, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix(dst)}
	}
	f := &fakeLinks{
		links: []rtnl.Link{
			{Index: 1, Name: "lo", Loopback: true},
			{Index: 2, Name: "eth0", Ethernet: true},
			{Index: 3, Name: "eth1", Ethernet: true},
			{Index: 4, Name: "eth2", Ethernet: true},
			{Index: 5, Name: "wg0", Kind: "wireguard", Bare: true},
			{Index: 6, Name: "cali1", Kind: "veth", Ethernet: true},
			{Index: 7, Name: "tap0", Kind: "tun", Ethernet: true},
			{Index: 8, Name: "eth3", Ethernet: true},
			{Index: 9, Name: "cni0", Kind: "bridge", Ethernet: true},
		},
		addrs: []rtnl.Addr{
			addr(9, "2001:db8:9::1/64"), addr(9, "10.1.0.1/16"),
			old, addr(1, "203.0.113.7/32"),
			addr(2, "192.0.2.10/24"), failed,
			addr(5, "10.8.0.1/32"), addr(6, "10.9.0.1/32"), addr(7, "10.9.0.2/32"),
		},
		routes: []rtnl.Route{
			route(2, 0, "0.0.0.0/0"), route(3, 100, "0.0.0.0/0"), route(4, 200, "::/0"), route(8, 300, "0.0.0.0/0"),
			route(6, 100, "10.9.0.5/32"),
		},
		rules: []rtnl.Rule{
			{Family: rtnl.FamilyV4, Table: rtnl.TableLocal}, {Family: rtnl.FamilyV4, Table: rtnl.TableMain}, {Family: rtnl.FamilyV4},
			{Family: rtnl.FamilyV4, Table: 100}, {Family: rtnl.FamilyV4, Table: 100}, {Family: rtnl.FamilyV6, Table: 200},
			{Family: rtnl.FamilyV6, Table: 300}, // nothing of IPv4 goes there
		},
	}
	n, _, err := Read(f, nil, onPodSide(9), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	lo, own := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("192.0.2.10")
	want := map[int]endpoint.Sources{2: {V4: own}, 3: {V4: lo}, 4: {V4: lo}, 5: {V4: netip.MustParseAddr("10.8.0.1"), Bare: true}}
	if diff := cmp.Diff(want, n.Uplinks, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("uplinks:\n%s", diff)
	}
}

// A bridge's ports have shown a packet to netfilter before the uplink's program sees it, also where the uplink is a device on the bridge.
func TestReadNodeBridges(t *testing.T) {
	link := func(index int, kind string, on int) rtnl.Link {
		return rtnl.Link{Index: index, Kind: kind, PeerIndex: on, PeerNetnsID: -1, Ethernet: true, MTU: 1400 + index}
	}
	elsewhere := link(9, "macvlan", 2)
	elsewhere.PeerNetnsID = 0
	pair := link(10, "veth", 3)
	f := &fakeLinks{links: []rtnl.Link{
		link(2, "", 0), link(3, "bridge", 0), link(4, "vlan", 3), link(5, "macvlan", 4), link(6, "vlan", 2), link(7, "vxlan", 99), link(8, "bond", 0), elsewhere, pair,
		{Index: 11, Kind: "ipip", PeerIndex: 3, PeerNetnsID: -1, Bare: true, MTU: 1400},
	}}
	for _, l := range f.links {
		f.addrs = append(f.addrs, addr(l.Index, fmt.Sprintf("192.0.%d.1/24", l.Index)))
	}
	n, _, err := Read(f, nil, onPodSide(99), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[int]uint16)
	for index, src := range n.Uplinks {
		got[index] = src.AgainMax
	}
	want := map[int]uint16{2: 0, 3: 1403 + 14, 4: 1404 + 14, 5: 1405 + 14, 6: 0, 7: 0, 8: 0, 9: 1409 + 14, 10: 0, 11: 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("longest frames:\n%s", diff)
	}
}

// An uplink masquerades with an address that the most destinations can answer.
func TestSources(t *testing.T) {
	addr := func(s string, flags uint32) rtnl.Addr {
		return rtnl.Addr{LinkIndex: 2, Prefix: netip.MustParsePrefix(s), Scope: rtnl.ScopeUniverse, Flags: flags}
	}
	for _, tt := range []struct {
		name   string
		addrs  []rtnl.Addr
		v4, v6 string
	}{
		{"the first", []rtnl.Addr{addr("192.0.2.1/24", 0), addr("198.51.100.1/24", 0)}, "192.0.2.1", ""},
		{"not the secondary", []rtnl.Addr{addr("192.0.2.2/24", unix.IFA_F_SECONDARY), addr("192.0.2.1/24", 0)}, "192.0.2.1", ""},
		{"private ones of IPv4 are like others", []rtnl.Addr{addr("10.0.0.1/24", 0), addr("192.0.2.1/24", 0)}, "10.0.0.1", ""},
		{"the global one", []rtnl.Addr{addr("fd00::1/64", 0), addr("2001:db8::1/64", 0)}, "", "2001:db8::1"},
		{"a unique local one that works", []rtnl.Addr{addr("2001:db8::1/64", unix.IFA_F_DEPRECATED), addr("fd00::1/64", 0)}, "", "fd00::1"},
		{"what there is", []rtnl.Addr{addr("2001:db8::1/64", unix.IFA_F_DEPRECATED)}, "", "2001:db8::1"},
	} {
		var want endpoint.Sources
		if tt.v4 != "" {
			want.V4 = netip.MustParseAddr(tt.v4)
		}
		if tt.v6 != "" {
			want.V6 = netip.MustParseAddr(tt.v6)
		}
		if got := Sources(tt.addrs, 2); got != want {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// An uplink that masquerades with another device's address has not changed because of that.
