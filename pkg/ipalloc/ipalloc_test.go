// SPDX-License-Identifier: Apache-2.0

package ipalloc

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func rng(subnet, start, end, gw string) Range {
	return Range{Subnet: netip.MustParsePrefix(subnet), Start: addr(start), End: addr(end), Gateway: addr(gw)}
}

func must(t testing.TB, r Range) Range {
	t.Helper()
	r, err := r.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestComplete(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		in    Range
		want  string // start-end gateway
		field string
	}{
		{name: "v4 defaults", in: rng("10.0.0.0/24", "", "", ""), want: "10.0.0.1-10.0.0.254 10.0.0.1"},
		{name: "smallest v4", in: rng("10.0.0.0/30", "", "", ""), want: "10.0.0.1-10.0.0.2 10.0.0.1"},
		{name: "odd length", in: rng("10.0.4.0/22", "", "", ""), want: "10.0.4.1-10.0.7.254 10.0.4.1"},
		{name: "v6 defaults", in: rng("fd00::/64", "", "", ""), want: "fd00::1-fd00::ffff:ffff:ffff:ffff fd00::1"},
		{name: "smallest v6", in: rng("fd00::4/126", "", "", ""), want: "fd00::5-fd00::7 fd00::5"},
		{name: "all given", in: rng("10.0.0.0/24", "10.0.0.9", "10.0.0.9", "10.9.9.9"), want: "10.0.0.9-10.0.0.9 10.9.9.9"},
		{name: "network and broadcast if asked for", in: rng("10.0.0.0/24", "10.0.0.0", "10.0.0.255", ""), want: "10.0.0.0-10.0.0.255 10.0.0.1"},
		{name: "no subnet", field: "subnet"},
		{name: "/31", in: rng("10.0.0.0/31", "", "", ""), field: "subnet"},
		{name: "/128", in: rng("fd00::/128", "", "", ""), field: "subnet"},
		{name: "host bits", in: rng("10.0.0.1/24", "", "", ""), field: "subnet"},
		{name: "mapped", in: rng("::ffff:10.0.0.0/120", "", "", ""), field: "subnet"},
		{name: "start outside", in: rng("10.0.0.0/24", "10.0.1.1", "", ""), field: "rangeStart"},
		{name: "start of another family", in: rng("10.0.0.0/24", "fd00::1", "", ""), field: "rangeStart"},
		{name: "end outside", in: rng("10.0.0.0/24", "", "10.0.1.1", ""), field: "rangeEnd"},
		{name: "end before start", in: rng("10.0.0.0/24", "10.0.0.9", "10.0.0.8", ""), field: "rangeEnd"},
		{name: "start is the broadcast address", in: rng("10.0.0.0/24", "10.0.0.255", "", ""), field: "rangeStart"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := tc.in.Complete()
			var fe *FieldError
			if errors.As(err, &fe) != (tc.field != "") || (fe != nil && fe.Field != tc.field) {
				t.Fatalf("err = %v, want field %q", err, tc.field)
			}
			if err == nil && got.String()+" "+got.Gateway.String() != tc.want {
				t.Errorf("got %s %s, want %s", got, got.Gateway, tc.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	a, b := must(t, rng("10.0.0.0/24", "", "10.0.0.100", "")), must(t, rng("10.0.0.0/24", "10.0.0.101", "", ""))
	c, six := must(t, rng("10.0.0.0/24", "10.0.0.100", "10.0.0.101", "")), must(t, rng("fd00::/64", "", "", ""))
	tests := []struct {
		name string
		set  Set
		ok   bool
	}{
		{"one", Set{a}, true},
		{"neighbours", Set{a, b}, true},
		{"empty", nil, false},
		{"overlap", Set{a, c}, false},
		{"enclosed", Set{must(t, rng("10.0.0.0/16", "", "", "")), a}, false},
		{"families", Set{a, six}, false},
	}
	for _, tc := range tests {
		if err := tc.set.Validate(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if _, _, ok := (Set{a}).Overlaps(Set{six, c}); !ok {
		t.Error("overlapping sets are not seen")
	}
	if _, _, ok := (Set{a}).Overlaps(Set{six, b}); ok {
		t.Error("neighbouring sets overlap")
	}
}

func collect(s Set, last netip.Addr) []string {
	var out []string
	for a := range s.After(last) {
		out = append(out, a.String())
	}
	return out
}

func TestAfter(t *testing.T) {
	t.Parallel()
	one := Set{must(t, rng("10.0.0.0/29", "", "", ""))}
	two := Set{
		must(t, rng("10.0.0.0/24", "10.0.0.10", "10.0.0.12", "")),
		must(t, rng("10.0.1.0/30", "", "", "")),
	}
	tests := []struct {
		name string
		set  Set
		last string
		want []string
	}{
		{"from the start", one, "", []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		{"round", one, "10.0.0.4", []string{"10.0.0.5", "10.0.0.6", "10.0.0.2", "10.0.0.3", "10.0.0.4"}},
		{"last is the end", one, "10.0.0.6", []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		{"last elsewhere", one, "10.9.0.6", []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		{"two ranges", two, "10.0.0.11", []string{"10.0.0.12", "10.0.1.2", "10.0.0.10", "10.0.0.11"}},
		{"from the second", two, "10.0.1.2", []string{"10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.1.2"}},
		{"only the gateway", Set{must(t, rng("10.0.0.0/24", "10.0.0.1", "10.0.0.1", ""))}, "", nil},
		{"highest address of all", Set{must(t, rng("255.255.255.252/30", "", "255.255.255.255", ""))}, "255.255.255.255", []string{"255.255.255.254", "255.255.255.255"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, collect(tc.set, addr(tc.last))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// slow is the obvious model: list all, rotate.
func slow(s Set, last netip.Addr) []string {
	var all []string
	start := 0
	for _, r := range s {
		for a := r.Subnet.Addr(); r.Subnet.Contains(a); a = a.Next() {
			if r.Contains(a) && a == last {
				start = len(all)
				if a != r.Gateway {
					start++
				}
			}
			if r.Contains(a) && a != r.Gateway {
				all = append(all, a.String())
			}
		}
	}
	return append(append([]string(nil), all[start:]...), all[:start]...)
}

func FuzzAfter(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var s Set
		for range 1 + rnd.IntN(4) {
			sub := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(rnd.IntN(8)), byte(rnd.IntN(256))}), 24+rnd.IntN(7)).Masked()
			r := must(t, Range{Subnet: sub})
			size := 1<<(32-sub.Bits()) - 2
			lo := rnd.IntN(size)
			for range lo {
				r.Start = r.Start.Next()
			}
			r.End = r.Start
			for range rnd.IntN(size - lo) {
				r.End = r.End.Next()
			}
			if rnd.IntN(3) == 0 {
				r.Gateway = r.End
			}
			if s.Validate() == nil && append(append(Set{}, s...), r).Validate() != nil {
				continue
			}
			s = append(s, r)
		}
		if s.Validate() != nil {
			return
		}
		last := netip.AddrFrom4([4]byte{10, 0, byte(rnd.IntN(8)), byte(rnd.IntN(256))})
		if diff := cmp.Diff(slow(s, last), collect(s, last)); diff != "" {
			t.Errorf("seed %d, set %s, last %s (-model +got):\n%s", seed, s, last, diff)
		}
	})
}

func TestAfterAgainstModel(t *testing.T) {
	t.Parallel()
	s := Set{must(t, rng("10.0.0.0/28", "", "", "")), must(t, rng("10.0.2.0/29", "", "", ""))}
	for a := addr("10.0.0.0"); a != addr("10.0.2.9"); a = a.Next() {
		if diff := cmp.Diff(slow(s, a), collect(s, a)); diff != "" {
			t.Fatalf("last %s (-model +got):\n%s", a, diff)
		}
	}
}
