// SPDX-License-Identifier: Apache-2.0

// Package ipalloc decides which address of a pool comes next. It is pure: it
// knows ranges and an order, nothing of files, owners or locks. The order is
// the one of upstream host-local plugin: round robin from the address
// reserved last, so that a restarting pod does not get its old address at once.
// It imports none of our packages.
package ipalloc

import (
	"fmt"
	"iter"
	"net/netip"
)

// Range is a contiguous piece of a subnet that addresses are taken from. Start
// and End are both part of it. The gateway is never handed out; it may lie
// outside the subnet.
type Range struct {
	Subnet  netip.Prefix
	Start   netip.Addr
	End     netip.Addr
	Gateway netip.Addr
}

// Set is an ordered list of ranges of one address family that together are one
// pool: an attachment gets one address from each set.
type Set []Range

// FieldError names the field of a Range ("subnet", "rangeStart", "rangeEnd",
// "gateway") that cannot be used, and why.
type FieldError struct {
	Field, Value, Why string
}

// Error returns field, value and reason in one line.
func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Why) }

// minHostBits leaves room for a network address, a broadcast address, a
// gateway and one pod.
const minHostBits = 2

// Complete checks a range and fills in what is missing: the gateway and Start
// are the first address of the subnet, End is the last (IPv4: the one before
// the broadcast address). The error is a *FieldError.
func (r Range) Complete() (Range, error) {
	if !r.Subnet.IsValid() {
		return r, &FieldError{"subnet", "", "is required"}
	}
	if r.Subnet.Addr().Is4In6() {
		return r, &FieldError{"subnet", r.Subnet.String(), "write an IPv4 subnet in IPv4 notation"}
	}
	if bits := r.Subnet.Addr().BitLen() - r.Subnet.Bits(); bits < minHostBits {
		return r, &FieldError{"subnet", r.Subnet.String(), "too small to allocate from"}
	}
	if net := r.Subnet.Masked(); net != r.Subnet {
		return r, &FieldError{"subnet", r.Subnet.String(), "host bits are set; the network is " + net.String()}
	}
	first := r.Subnet.Addr().Next()
	if !r.Gateway.IsValid() {
		r.Gateway = first
	}
	if !r.Start.IsValid() {
		r.Start = first
	}
	endGiven := r.End.IsValid()
	if !endGiven {
		r.End = lastUsable(r.Subnet)
	}
	if !r.Subnet.Contains(r.Start) {
		return r, &FieldError{"rangeStart", r.Start.String(), "not in subnet " + r.Subnet.String()}
	}
	if !r.Subnet.Contains(r.End) {
		return r, &FieldError{"rangeEnd", r.End.String(), "not in subnet " + r.Subnet.String()}
	}
	if r.End.Less(r.Start) {
		if !endGiven {
			return r, &FieldError{"rangeStart", r.Start.String(), "after " + r.End.String() + ", the last address to give away"}
		}
		return r, &FieldError{"rangeEnd", r.End.String(), "before rangeStart " + r.Start.String()}
	}
	return r, nil
}

// lastUsable returns the highest address of a subnet that a host may have.
func lastUsable(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// Contains reports whether a lies between Start and End.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.Start.BitLen() && r.Start.Compare(a) <= 0 && a.Compare(r.End) <= 0
}

// Overlaps reports whether an address lies in both ranges.
func (r Range) Overlaps(o Range) bool {
	return r.Start.BitLen() == o.Start.BitLen() && r.Start.Compare(o.End) <= 0 && o.Start.Compare(r.End) <= 0
}

// String returns "start-end".
func (r Range) String() string { return r.Start.String() + "-" + r.End.String() }

// Prefix returns a with the length of the range's subnet.
func (r Range) Prefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, r.Subnet.Bits()) }

// Is4 reports whether the set holds IPv4 addresses.
func (s Set) Is4() bool { return len(s) > 0 && s[0].Start.Is4() }

// Validate checks that completed ranges form a pool: one at least, one family,
// no overlap.
func (s Set) Validate() error {
	if len(s) == 0 {
		return fmt.Errorf("the set has no range")
	}
	for i, r := range s {
		if r.Start.Is4() != s[0].Start.Is4() {
			return fmt.Errorf("IPv4 and IPv6 are mixed in one set (%s and %s)", s[0], r)
		}
		for _, o := range s[:i] {
			if r.Overlaps(o) {
				return fmt.Errorf("ranges %s and %s overlap", o, r)
			}
		}
	}
	return nil
}

// Find returns the range that holds a.
func (s Set) Find(a netip.Addr) (Range, bool) {
	for _, r := range s {
		if r.Contains(a) {
			return r, true
		}
	}
	return Range{}, false
}

// Overlaps reports whether an address lies in both sets, and in which ranges.
func (s Set) Overlaps(o Set) (Range, Range, bool) {
	for _, a := range s {
		for _, b := range o {
			if a.Overlaps(b) {
				return a, b, true
			}
		}
	}
	return Range{}, Range{}, false
}

// String returns the ranges with commas between them.
func (s Set) String() string {
	out := ""
	for i, r := range s {
		if i > 0 {
			out += ","
		}
		out += r.String()
	}
	return out
}

// After yields every address of the set that may be handed out, once each, in
// the order they should be tried: from the one after last to the end of its
// range, through the following ranges, around, and last itself at the end. When
// last is not in the set, the order starts at the first range. Gateways are
// left out. The caller stops at the first free one; an IPv6 pool is too large
// to be run through otherwise.
func (s Set) After(last netip.Addr) iter.Seq2[netip.Addr, Range] {
	return func(yield func(netip.Addr, Range) bool) {
		at, from := 0, netip.Addr{}
		for i, r := range s {
			if r.Contains(last) {
				at, from = i, last
				break
			}
		}
		if from.IsValid() && !s[at].walk(from, false, s[at].End, yield) {
			return
		}
		for n := range s {
			i := (at + n) % len(s)
			if from.IsValid() {
				i = (at + 1 + n) % len(s)
			}
			end := s[i].End
			if from.IsValid() && i == at {
				end = last
			}
			if !s[i].walk(s[i].Start, true, end, yield) {
				return
			}
		}
	}
}

// walk yields the addresses from start (itself only if inclusive) to end.
func (r Range) walk(start netip.Addr, inclusive bool, end netip.Addr, yield func(netip.Addr, Range) bool) bool {
	a := start
	if !inclusive {
		if a == end {
			return true
		}
		a = a.Next()
	}
	for {
		if a != r.Gateway && !yield(a, r) {
			return false
		}
		if a == end {
			return true
		}
		a = a.Next()
	}
}
