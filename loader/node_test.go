// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/nl"
)

// fakeLinks is a node that exists on paper.
type fakeLinks struct {
	links  []nl.Link
	addrs  []nl.Addr
	routes []nl.Route
	asked  int
}

var _ links = (*fakeLinks)(nil)

func (f *fakeLinks) LinkByIndex(index int) (nl.Link, error) {
	f.asked++
	for _, l := range f.links {
		if l.Index == index {
			return l, nil
		}
	}
	return nl.Link{}, fmt.Errorf("link index %d: %w", index, nl.ErrNotFound)
}

func (f *fakeLinks) LinkByName(name string) (nl.Link, error) {
	for _, l := range f.links {
		if l.Name == name {
			return l, nil
		}
	}
	return nl.Link{}, fmt.Errorf("link %q: %w", name, nl.ErrNotFound)
}

func (f *fakeLinks) Addrs(int) ([]nl.Addr, error) { return f.addrs, nil }

func (f *fakeLinks) Routes(int) ([]nl.Route, error) { return f.routes, nil }

func addr(index int, prefix string) nl.Addr {
	return nl.Addr{LinkIndex: index, Prefix: netip.MustParsePrefix(prefix), Scope: nl.ScopeUniverse}
}

func TestReadNode(t *testing.T) {
	f := &fakeLinks{
		links: []nl.Link{
			{Index: 1, Name: "lo", Loopback: true},
			{Index: 2, Name: "eth0", Ethernet: true},
			{Index: 3, Name: "kube-ipvs0", Kind: "dummy", Ethernet: true},
			{Index: 4, Name: "br0", Kind: "bridge", Ethernet: true},
			{Index: 5, Name: "wg0", Kind: "wireguard"},
			{Index: 6, Name: "eth1", Ethernet: true},
		},
		addrs: []nl.Addr{
			addr(1, "127.0.0.1/8"), addr(1, "::1/128"), addr(1, "203.0.113.7/32"),
			addr(2, "192.0.2.10/24"), addr(2, "2001:db8::10/64"), addr(2, "fe80::10/64"),
			addr(3, "10.96.0.1/32"), addr(3, "10.96.0.0/12"),
			addr(4, "10.1.0.1/16"), addr(5, "10.8.0.1/24"),
			addr(99, "198.51.100.1/24"), // of a device that has just gone
		},
		routes: []nl.Route{
			{LinkIndex: 6, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("::/0")},
			{LinkIndex: 7, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("10.9.0.5/32")},
			{LinkIndex: 8, Type: unix.RTN_UNICAST, Dst: netip.MustParsePrefix("fe80::/64")},
			{LinkIndex: 0, Type: unix.RTN_BLACKHOLE, Dst: netip.MustParsePrefix("10.0.0.0/8")},
		},
	}
	for i := range 250 { // the pods' host ends
		f.addrs = append(f.addrs, addr(100+i, fmt.Sprintf("fe80::%x/64", i+1)), addr(100+i, "10.5.0.1/32")) // the latter on point-to-point links
		f.links = append(f.links, nl.Link{Index: 100 + i, Kind: "veth", Ethernet: true})
	}
	n, err := readNode(f, nil, func(index int) bool { return index == 4 })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{2, 6}, slices.Sorted(maps.Keys(n.uplinks))); diff != "" {
		t.Errorf("uplinks:\n%s", diff)
	}
	addrs := make(map[string]uint32)
	for a, index := range n.addrs {
		addrs[a.String()] = index
	}
	want := map[string]uint32{"203.0.113.7": 1, "192.0.2.10": 2, "2001:db8::10": 2, "10.1.0.1": 4, "10.8.0.1": 5, "10.5.0.1": 100}
	if diff := cmp.Diff(want, addrs); diff != "" {
		t.Errorf("addresses:\n%s", diff)
	}
	if len(n.skipped) != 1 || n.skipped[0].Name != "wg0" {
		t.Errorf("skipped: %+v", n.skipped)
	}
	if f.asked > 10 {
		t.Errorf("%d links were asked for: the cost grows with the pods", f.asked)
	}
}

func TestParseLinkName(t *testing.T) {
	for _, h := range allHooks() {
		index, got, ok := parseLinkName(linkName(12, h))
		if !ok || index != 12 || got.name != h.name || got.egress != h.egress {
			t.Errorf("%s: %d %v %t", linkName(12, h), index, got, ok)
		}
	}
	for _, bad := range []string{"", "dev", "dev1", "dev1_x", "eth0_pod_egress", "dev0_pod_egress", "devx_pod_egress"} {
		if _, _, ok := parseLinkName(bad); ok {
			t.Errorf("%q was taken for a link of ours", bad)
		}
	}
}
