// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newRange(cidr string, exclude ...string) Range {
	r := Range{CIDR: netip.MustParsePrefix(cidr)}
	r.First, r.Last, _ = Usable(r.CIDR)
	for _, e := range exclude {
		r.Exclude = append(r.Exclude, netip.MustParsePrefix(e))
	}
	return r
}

// Names as whereabouts has them: its own documentation shows these.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ network, node, cidr, want string }{
		{"", "", "192.168.2.0/24", "192.168.2.0-24"},
		{"net", "", "192.168.2.0/24", "net-192.168.2.0-24"},
		{"net", "n1", "192.168.2.0/24", "net-n1-192.168.2.0-24"},
		{"", "n1", "10.0.0.0/28", "n1-10.0.0.0-28"},
		{"", "", "2001:db8::/64", "2001-db8---64"},
	} {
		if got := Name(tc.network, tc.node, tc.cidr); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
	for want, a := range map[string]string{"10.0.0.5": "10.0.0.5", "2001-db8--5": "2001:db8::5", "2001-db8--0": "2001:db8::"} {
		if got := ReservationName("", netip.MustParseAddr(a)); got != want {
			t.Errorf("reservation of %s: %s", a, got)
		}
	}
	if got := ReservationName("net", netip.MustParseAddr("10.0.0.5")); got != "net-10.0.0.5" {
		t.Error(got)
	}
}

func TestOffsets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cidr, addr string
		off        uint64
		ok         bool
	}{
		{"10.0.0.0/24", "10.0.0.0", 0, true},
		{"10.0.0.0/24", "10.0.0.255", 255, true},
		{"10.0.0.0/24", "10.0.1.0", 0, false},
		{"10.0.0.128/25", "10.0.0.129", 1, true},
		{"fd00::/64", "fd00::1:0", 65536, true},
		{"fd00::/64", "fd00::7fff:ffff:ffff:ffff", MaxOffset, true},
		{"fd00::/64", "fd00::8000:0:0:0", 0, false}, // whereabouts could not read it back
		{"fd00::/48", "fd00::5", 5, true},
		{"fd00::/48", "fd00:0:0:1::5", 0, false}, // further than 64 bits
		{"fd00::ff00/120", "fd00::ff07", 7, true},
	} {
		p, a := netip.MustParsePrefix(tc.cidr), netip.MustParseAddr(tc.addr)
		off, ok := Offset(p, a)
		if off != tc.off || ok != tc.ok {
			t.Errorf("%s in %s: %d %v", a, p, off, ok)
		}
		if !ok {
			continue
		}
		if back, ok := Addr(p, off); !ok || back != a {
			t.Errorf("%s in %s came back as %s %v", a, p, back, ok)
		}
	}
	if a, ok := Addr(netip.MustParsePrefix("10.0.0.0/30"), 4); ok {
		t.Errorf("10.0.0.0/30 has a fifth address %s", a)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	r := newRange("10.0.0.0/28", "10.0.0.4/30", "10.0.0.9/32")
	r.Gateway = netip.MustParseAddr("10.0.0.1")
	if diff := cmp.Diff([]uint64{2, 3, 8, 10, 11, 12, 13, 14}, r.Choose(nil, 0, 100)); diff != "" {
		t.Error(diff)
	}
	if got := r.Size(); got != 8 {
		t.Errorf("size %d", got)
	}
	if diff := cmp.Diff([]uint64{12, 14, 2}, r.Choose(map[uint64]bool{13: true, 3: true}, 12, 3)); diff != "" {
		t.Error(diff)
	}
	for off := range uint64(16) {
		in := false
		for _, o := range r.Choose(nil, 0, 100) {
			in = in || o == off
		}
		if r.Dynamic(off) != in {
			t.Errorf("offset %d: dynamic %v, chosen %v", off, r.Dynamic(off), in)
		}
	}
}

// A large range, most of it excluded or taken, takes no walk: the test would not end.
func TestChooseDoesNotWalk(t *testing.T) {
	t.Parallel()
	r := newRange("fd00::/64", "fd00::/66", "fd00::4000:0:0:0/67")
	got := r.Choose(map[uint64]bool{0x6000000000000000: true}, 0, 2)
	if diff := cmp.Diff([]uint64{0x6000000000000001, 0x6000000000000002}, got); diff != "" {
		t.Error(diff)
	}
	if r := newRange("fd00::/64"); r.Size() < 1<<62 || Count(r.Size()) != "2^62" {
		t.Errorf("size %s", Count(r.Size()))
	}
}

func TestNodeIDs(t *testing.T) {
	t.Parallel()
	n := NodeID{Node: "node-1.example", Machine: "0a1b2c3d", Boot: "00112233", Nonce: "abcdef"}
	if back, ok := ParseNodeID(n.String()); !ok || back != n {
		t.Errorf("%s came back as %+v %v", n, back, ok)
	}
	for _, s := range []string{"", "0123abc", "sluice/x", "sluice/x/1.2"} {
		if got, ok := ParseNodeID(s); ok {
			t.Errorf("%q is %+v", s, got)
		}
	}
	taken := map[uint64]Entry{1: {ID: n.String()}, 2: {ID: n.String()}, 3: {ID: "c", PodRef: "ns/p"}}
	if got := Holders(taken, 5); got != "node node-1.example 2, pod ns/p 1" {
		t.Error(got)
	}
}

// A pool of a node's slice is told from those of the network itself, and from another network's.
func TestSliceNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		network, name, cidr, node string
	}{
		{"", "n1-10.0.0.0-28", "10.0.0.0/28", "n1"},
		{"", "n1.example-fd00---64", "fd00::/64", "n1.example"},
		{"net", "net-n1-10.0.0.0-28", "10.0.0.0/28", "n1"},
		{"net", "net-10.0.0.0-28", "10.0.0.0/28", ""},
		{"", "10.0.0.0-28", "10.0.0.0/28", ""},
		{"net", "other-n1-10.0.0.0-28", "10.0.0.0/28", ""},
		{"", "n1-10.0.0.0-28", "10.0.0.16/28", ""},
	} {
		node, ok := SliceNode(tc.network, tc.name, tc.cidr)
		if ok != (tc.node != "") || ok && (node != tc.node || Name(tc.network, node, tc.cidr) != tc.name) {
			t.Errorf("%+v: %q %v", tc, node, ok)
		}
	}
}
