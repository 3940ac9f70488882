// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

func TestAddr(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"10.1.2.3", "0.0.0.0", "::", "2001:db8::1", "fe80::1"} {
		a := netip.MustParseAddr(s)
		if got := FromAddr(Addr(a)); got != a {
			t.Errorf("%s comes back as %s", s, got)
		}
	}
	if Addr(netip.MustParseAddr("10.1.2.3")) != [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 3} {
		t.Error("IPv4 is not v4-mapped")
	}
	if Addr(netip.Addr{}) != [16]byte{} {
		t.Error("no address is not all zero")
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]uint8{"10.1.0.2/16": 112, "10.1.0.2/32": 128, "0.0.0.0/0": 96, "2001:db8::1/64": 64} {
		p := netip.MustParsePrefix(s)
		if got := PrefixLen(p); got != want {
			t.Errorf("%s: length %d, want %d", s, got, want)
		}
		if got := FromPrefix(p.Addr(), PrefixLen(p)); got != p {
			t.Errorf("%s comes back as %s", s, got)
		}
	}
}

func TestPort(t *testing.T) {
	t.Parallel()
	if Port(Port(8080)) != 8080 {
		t.Error("Port is not its own inverse")
	}
}

// Both ways of walking a map see every entry once, and stop when they are told to.
func TestPrivilegedEach(t *testing.T) {
	t.Parallel()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // maps are charged to it before Linux 5.11
	for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.Array} {
		const n = 3000
		spec := &ebpf.MapSpec{Name: "sl_test", Type: typ, KeySize: 4, ValueSize: 8, MaxEntries: n}
		if typ == ebpf.LRUHash {
			spec.MaxEntries = 4 * n // an LRU map evicts before it is full
		}
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for i := range uint32(n) {
			if err := m.Put(i, uint64(i)*3); err != nil {
				t.Fatal(err)
			}
		}
		view := bpftest.View(t, m)
		for name, each := range map[string]func(*bpfsys.Map, func(*uint32, *uint64) bool) error{
			"batch": Each[uint32, uint64], "one by one": eachSlow[uint32, uint64],
		} {
			seen := make(map[uint32]int)
			if err := each(view, func(k *uint32, v *uint64) bool {
				if *v != uint64(*k)*3 {
					t.Errorf("%s, %s: %d has %d", typ, name, *k, *v)
				}
				seen[*k]++
				return true
			}); err != nil {
				t.Fatal(err)
			}
			if len(seen) != n {
				t.Errorf("%s, %s: %d entries of %d", typ, name, len(seen), n)
			}
			calls := 0
			if err := each(view, func(*uint32, *uint64) bool { calls++; return calls < 5 }); err != nil || calls != 5 {
				t.Errorf("%s, %s: %d calls, %v", typ, name, calls, err)
			}
		}
		if got, err := Count[uint32, uint64](view); err != nil || got != n {
			t.Errorf("%s: count %d, %v", typ, got, err)
		}
	}
}
