// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

func testMap(t *testing.T) Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sl_test", Type: ebpf.Hash, KeySize: 20, ValueSize: 88, MaxEntries: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return New(bpftest.View(t, m), cacheepoch.Epoch{})
}

func TestPrivilegedMap(t *testing.T) {
	t.Parallel()
	m := testMap(t)
	want := map[Key]Value{
		{netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8080}:              {PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80, Owner: 1, Gen: 7, Flags: FlagSNAT},
		{netip.IPv6Unspecified(), unix.IPPROTO_TCP, 8080}:              {PodIP: netip.MustParseAddr("fd00::2"), PodPort: 80, Owner: 1, Gen: 7},
		{netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_UDP, 53}:       {PodIP: netip.MustParseAddr("10.1.0.3"), PodPort: 5353, Owner: 1 << 63, Gen: 8, Sources: 1 << 62, Conditions: Conditions{Source: netip.MustParsePrefix("10.0.0.0/8"), NotSource: true, In: 3}},
		{netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_TCP, 53}:       {PodIP: netip.MustParseAddr("10.1.0.4"), PodPort: 5353, Owner: 2, Gen: 9, Flags: FlagMasqAll},
		{netip.MustParseAddr("2001:db8::1"), unix.IPPROTO_SCTP, 65535}: {PodIP: netip.MustParseAddr("fd00::3"), PodPort: 1, Owner: 3, Gen: 1, Conditions: Conditions{Dest: netip.MustParsePrefix("2001:db8::/32"), In: 4, NotIndex: true}},
	}
	for k, v := range want {
		if err := m.Put(k, v); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[Key]Value)
	if err := m.Each(func(k Key, v Value) bool {
		got[k] = v
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	for k, v := range want {
		if got, ok, err := m.Get(k); err != nil || !ok || got != v {
			t.Errorf("%s: %+v %t %v", k, got, ok, err)
		}
		if err := m.Delete(k); err != nil {
			t.Error(err)
		}
		if err := m.Delete(k); err != nil {
			t.Errorf("delete of what is not there: %v", err)
		}
	}
}

// The bytes are those of the C structs: ports big endian, addresses v4-mapped.
func TestKeyBytes(t *testing.T) {
	t.Parallel()
	k := Key{netip.MustParseAddr("10.1.0.2"), unix.IPPROTO_TCP, 0x1f90}.raw()
	want := bpfgen.TypesSlHostportKey{Ip: [16]uint8{10: 0xff, 11: 0xff, 12: 10, 13: 1, 15: 2}, Port: 0x901f, Proto: 6}
	if k != want {
		t.Errorf("%+v, want %+v", k, want)
	}
}

func TestBitmap(t *testing.T) {
	t.Parallel()
	b, err := ParseReserved("0,80,1000-1005,65535")
	if err != nil {
		t.Fatal(err)
	}
	set := 0
	for p := range 1 << 16 {
		if b.Has(uint16(p)) {
			set++
		}
	}
	if set != 9 || !b.Has(0) || !b.Has(80) || !b.Has(1005) || b.Has(1006) || !b.Has(65535) {
		t.Errorf("%d ports set", set)
	}
}
