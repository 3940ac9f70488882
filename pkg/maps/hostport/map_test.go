// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

// deep compares fields: Entry.Equal leaves out what the map does not hold.
var deep = cmp.Transformer("fields", func(e Entry) (f struct {
	Mapping
	Owner, Generation, Allowlist uint64
}) {
	f.Mapping, f.Owner, f.Generation, f.Allowlist = e.Mapping, e.Owner, e.Generation, e.Allowlist
	return f
})

func testMap(t *testing.T) Map {
	t.Helper()
	m := bpftest.NewMap(t, &ebpf.MapSpec{Name: "sl_test", Type: ebpf.Hash, KeySize: 20, ValueSize: 88, MaxEntries: 16})
	return New(bpftest.View(t, m), cacheepoch.Epoch{})
}

func TestPrivilegedMap(t *testing.T) {
	t.Parallel()
	m := testMap(t)
	any4, any6, node := netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("192.0.2.1")
	entry := func(host netip.Addr, proto uint8, port uint16, pod string, podPort uint16, owner, generation uint64) Entry {
		k := Key{HostIP: host, Proto: proto, Port: port}
		return Entry{Mapping: Mapping{Key: k, PodIP: netip.MustParseAddr(pod), PodPort: podPort}, Owner: owner, Generation: generation}
	}
	want := []Entry{
		entry(any4, unix.IPPROTO_TCP, 8080, "10.1.0.2", 80, 1, 7),
		entry(any6, unix.IPPROTO_TCP, 8080, "fd00::2", 80, 1, 7),
		entry(node, unix.IPPROTO_UDP, 53, "10.1.0.3", 5353, 1<<63, 8),
		entry(node, unix.IPPROTO_TCP, 53, "10.1.0.4", 5353, 2, 9),
		entry(netip.MustParseAddr("2001:db8::1"), unix.IPPROTO_SCTP, 65535, "fd00::3", 1, 3, 1),
	}
	want[0].SNAT = true
	want[2].Allowlist = 1 << 62
	want[2].Conditions = Conditions{Source: netip.MustParsePrefix("10.0.0.0/8"), NotSource: true, InIfindex: 3}
	want[3].MasqAll = true
	want[4].Conditions = Conditions{Dest: netip.MustParsePrefix("2001:db8::/32"), InIfindex: 4, NotIn: true}
	for _, e := range want {
		if err := m.Put(e); err != nil {
			t.Fatal(err)
		}
	}
	var got []Entry
	if err := m.Each(func(e Entry) bool {
		got = append(got, e)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	byKey := cmpopts.SortSlices(func(a, b Entry) bool { return a.Key.String() < b.Key.String() })
	if diff := cmp.Diff(want, got, byKey, deep, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	for _, e := range want {
		if got, ok, err := m.Get(e.Key); err != nil || !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%s: %+v %t %v", e.Key, got, ok, err)
		}
		if err := m.Delete(e.Key); err != nil {
			t.Error(err)
		}
		if err := m.Delete(e.Key); err != nil {
			t.Errorf("delete of what is not there: %v", err)
		}
	}
}

// The bytes are those of the C structs: ports big endian, addresses v4-mapped.
func TestKeyBytes(t *testing.T) {
	t.Parallel()
	k := rawKey(Key{HostIP: netip.MustParseAddr("10.1.0.2"), Proto: unix.IPPROTO_TCP, Port: 0x1f90})
	want := bpfgen.TypesSlHostportKey{Ip: [16]uint8{10: 0xff, 11: 0xff, 12: 10, 13: 1, 15: 2}, Port: 0x901f, Proto: 6}
	if k != want {
		t.Errorf("%+v, want %+v", k, want)
	}
}

func TestPortBitmap(t *testing.T) {
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
