// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

func nets(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// A list is named by what is in it, in whatever order.
func TestAllowlistID(t *testing.T) {
	t.Parallel()
	a := AllowlistID(nets("10.0.0.0/8", "2001:db8::/32"))
	if b := AllowlistID(nets("2001:db8::/32", "10.0.0.0/8", "10.0.0.0/8")); a != b {
		t.Errorf("%x and %x for the same list", a, b)
	}
	if b := AllowlistID(nets("10.0.0.0/8")); a == b || b == 0 || b%2 != 0 {
		t.Errorf("%x for another list, %x for one", b, a)
	}
	if AllowlistID(nil) != 0 {
		t.Error("no list has a name")
	}
}

func TestPrivilegedAllowlists(t *testing.T) {
	t.Parallel()
	m := bpftest.NewMap(t, &ebpf.MapSpec{Name: "sl_test", Type: ebpf.LPMTrie, KeySize: 28, ValueSize: 4, MaxEntries: 16, Flags: unix.BPF_F_NO_PREALLOC})
	s := NewAllowlists(bpftest.View(t, m))
	first, second := nets("10.0.0.0/8", "::/0"), nets("0.0.0.0/0")
	a, err := s.Put(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Put(second)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.All()
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint64][]netip.Prefix{a: Canonical(first), b: second}
	if diff := cmp.Diff(want, all, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if err := s.Keep(map[uint64]bool{b: true}); err != nil {
		t.Fatal(err)
	}
	if has, err := s.Has(first); has || err != nil {
		t.Errorf("a list that nobody uses is there still: %v", err)
	}
	if has, err := s.Has(second); !has || err != nil {
		t.Errorf("a list that is used has gone: %v", err)
	}
	if n, err := s.Len(); n != 1 || err != nil {
		t.Errorf("%d networks, %v", n, err)
	}
}
