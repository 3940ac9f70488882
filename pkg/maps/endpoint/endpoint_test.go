// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

func newMap(t *testing.T, spec ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	spec.Name, spec.MaxEntries, spec.Flags = "sl_test", 16, 1 // BPF_F_NO_PREALLOC
	return bpftest.NewMap(t, &spec)
}

func TestPrivilegedMap(t *testing.T) {
	t.Parallel()
	raw := newMap(t, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: uint32(unsafe.Sizeof(Value{}))})
	m := New(bpftest.View(t, raw), cacheepoch.Epoch{})
	a4, a6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")
	v := &Value{Owner: 1 << 63, Ifindex: 5, RouteIfindex: 6, Flags: FlagAdmit | FlagPublish, Mtu: 1500, Mac: [6]uint8{2, 1}, PrefixLen: 112}
	for _, a := range []netip.Addr{a4, a6} {
		if err := m.Put(a, v); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	if err := m.Each(func(a netip.Addr, got *Value) bool {
		if *got != *v {
			t.Errorf("%s: %+v", a, got)
		}
		seen = append(seen, a.String())
		return true
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(seen)
	if diff := cmp.Diff([]string{"10.1.0.2", "fd00::2"}, seen); diff != "" {
		t.Error(diff)
	}
	if p := v.Prefix(a4); p.String() != "10.1.0.2/16" {
		t.Errorf("prefix %s", p)
	}
	if diff := cmp.Diff([]string{"admit", "publish"}, FlagNames(v.Flags)); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		if err := m.Delete(a4); err != nil {
			t.Error(err)
		}
	}
	if _, ok, err := m.Get(a4); ok || err != nil {
		t.Errorf("after delete: %t %v", ok, err)
	}
}

func TestPrivilegedStats(t *testing.T) {
	t.Parallel()
	raw := newMap(t, ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 72})
	s := NewStats(bpftest.View(t, raw))
	cpus := ebpf.MustPossibleCPU()
	perCPU := make([]Counters, cpus)
	for i := range perCPU {
		perCPU[i] = Counters{RxPackets: 1, TxBytes: 10, Drops: uint64(i), Pod: 7, Owner: 9}
	}
	if err := raw.Put(uint32(7), perCPU); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(7, 7, 9); err != nil { // must not reset
		t.Fatal(err)
	}
	got, ok, err := s.Get(7)
	if err != nil || !ok || got.RxPackets != uint64(cpus) || got.TxBytes != uint64(10*cpus) {
		t.Errorf("%+v %t %v", got, ok, err)
	}
	if err := s.Create(8, 7, 9); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(8, 7, 10); err != nil { // the device of another attachment now
		t.Fatal(err)
	}
	var other []Counters
	if err := raw.Lookup(uint32(8), &other); err != nil || other[0].Owner != 10 {
		t.Errorf("owner %d %v", other[0].Owner, err)
	}
	keys, err := s.Keys()
	slices.Sort(keys)
	if err != nil || !slices.Equal(keys, []uint32{7, 8}) {
		t.Errorf("%v %v", keys, err)
	}
	if err := s.Delete(9); err != nil {
		t.Errorf("delete of what is not there: %v", err)
	}
}

// What a device has counted stays in the sum when it goes, once, and is no device in the list.
func TestPrivilegedStatsRetire(t *testing.T) {
	t.Parallel()
	raw := newMap(t, ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 72})
	s := NewStats(bpftest.View(t, raw))
	total := func(want uint64) {
		t.Helper()
		if _, c, err := s.All(); err != nil || c.RxPackets != want || c.TxBytes != 10*want || c.Pod != 0 || c.Owner != 0 {
			t.Errorf("%+v %v, not %d packets", c, err, want)
		}
	}
	total(0)
	cpus := uint64(ebpf.MustPossibleCPU())
	for index, n := range map[uint32]uint64{7: 1, 8: 100, 9: 10000} {
		perCPU := make([]Counters, cpus)
		for i := range perCPU {
			perCPU[i] = Counters{RxPackets: n, TxBytes: 10 * n, Pod: 7, Owner: 9}
		}
		if err := raw.Put(index, perCPU); err != nil {
			t.Fatal(err)
		}
	}
	total(10101 * cpus)
	for _, index := range []uint32{7, 7, 8, 55} {
		if err := s.Retire(index); err != nil {
			t.Fatal(err)
		}
		total(10101 * cpus)
	}
	if keys, err := s.Keys(); err != nil || !slices.Equal(keys, []uint32{9}) {
		t.Errorf("%v %v", keys, err)
	}
	if _, ok, err := s.Get(7); ok || err != nil {
		t.Errorf("the counters are still there: %v", err)
	}
	if err := s.Delete(9); err != nil {
		t.Fatal(err)
	}
	total(101 * cpus)
}

func TestPrivilegedUplinks(t *testing.T) {
	t.Parallel()
	raw := newMap(t, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(bpfgen.TypesSlUplink{}))})
	u := NewUplinks(bpftest.View(t, raw))
	want := map[uint32]Sources{
		2: {V4: netip.MustParseAddr("192.0.2.1"), V6: netip.MustParseAddr("2001:db8::1")},
		3: {V6: netip.MustParseAddr("2001:db8::2")},
		4: {Bare: true},
		5: {V4: netip.MustParseAddr("192.0.2.1"), AgainMax: 1514},
		7: {Bare: true, NoRedirect: true},
	}
	for index, s := range want {
		if err := u.Put(index, s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := u.All()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestPrivilegedNoMasqReplace(t *testing.T) {
	t.Parallel()
	raw := newMap(t, ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 4})
	n := NewNoMasq(bpftest.View(t, raw))
	prefixes := func(s ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	has := func(addr string) bool {
		a := netip.MustParseAddr(addr).As16()
		key := append([]byte{128, 0, 0, 0}, a[:]...)
		var v uint32
		return raw.Lookup(key, &v) == nil
	}
	if err := n.Replace(prefixes("10.0.0.0/8", "fd00::/8")); err != nil {
		t.Fatal(err)
	}
	if !has("10.200.0.1") || !has("fd12::1") || has("11.0.0.1") || has("2001:db8::1") {
		t.Error("first set")
	}
	if err := n.Replace(prefixes("fd00::/8", "172.16.0.0/12")); err != nil {
		t.Fatal(err)
	}
	if has("10.200.0.1") || !has("fd12::1") || !has("172.17.0.1") {
		t.Error("second set")
	}
}
