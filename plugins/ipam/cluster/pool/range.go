// SPDX-License-Identifier: Apache-2.0

// Package pool is the model of a cluster-wide pool of addresses: its ranges, which addresses come next, who has an
// address, and how all of it is written in whereabouts' objects (whereabouts.go). It is pure.
//
// The plugin, the claims and the stores use it. It must not know a store, a file or a clock.
package pool

import (
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
)

// Range is what addresses are taken from. First and Last bound what is handed out when no address is asked for.
type Range struct {
	CIDR    netip.Prefix   `json:"cidr"` // masked; its first address is offset 0
	First   netip.Addr     `json:"first"`
	Last    netip.Addr     `json:"last"`
	Exclude []netip.Prefix `json:"exclude,omitempty"`
	Gateway netip.Addr     `json:"gateway"`          // never handed out; the zero value: none
	Lowest  bool           `json:"lowest,omitempty"` // the lowest free address is the next one, as with whereabouts
}

// Usable returns the first and the last address of a network that a pod may have: not the first and the last of all,
// in both families, as whereabouts has it. It reports false for a network without any.
func Usable(p netip.Prefix) (first, last netip.Addr, ok bool) {
	if p.Addr().BitLen()-p.Bits() < 2 {
		return first, last, false
	}
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	end, _ := netip.AddrFromSlice(b)
	return p.Masked().Addr().Next(), end.Prev(), true
}

// Bounds returns the offsets of First and Last. Last is cut at MaxOffset. It reports false if no address is between.
func (r *Range) Bounds() (first, last uint64, ok bool) {
	first, ok = Offset(r.CIDR, r.First)
	if !ok {
		return 0, 0, false
	}
	if last, ok = Offset(r.CIDR, r.Last); !ok {
		last = MaxOffset
	}
	return first, last, first <= last
}

// Dynamic reports whether the offset is handed out when no address is asked for.
func (r *Range) Dynamic(offset uint64) bool {
	first, last, ok := r.Bounds()
	if !ok || offset < first || offset > last {
		return false
	}
	a, ok := Addr(r.CIDR, offset)
	return ok && a != r.Gateway && r.excluded(a) == nil
}

// Refuses says why an address that was asked for cannot be had of this range, even if it is free. Empty: it can.
func (r *Range) Refuses(a netip.Addr) string {
	first, last, ok := Usable(r.CIDR)
	_, near := Offset(r.CIDR, a)
	switch {
	case !ok || !near || a.Less(first) || last.Less(a):
		return "the address is not usable in " + r.CIDR.String()
	case a == r.Gateway:
		return "the address is the gateway of " + r.CIDR.String()
	}
	if e := r.excluded(a); e != nil {
		return "the address is excluded by " + e.String()
	}
	return ""
}

func (r *Range) excluded(a netip.Addr) *netip.Prefix {
	for i := range r.Exclude {
		if r.Exclude[i].Contains(a) {
			return &r.Exclude[i]
		}
	}
	return nil
}

// Size returns how many addresses the range hands out on its own, at most MaxOffset.
func (r *Range) Size() uint64 {
	first, last, ok := r.Bounds()
	if !ok {
		return 0
	}
	n := last - first + 1
	for i, e := range r.Exclude {
		lo, hi, ok := r.span(e)
		if ok && !covered(r.Exclude, i) {
			n -= hi - lo + 1
		}
	}
	if off, ok := Offset(r.CIDR, r.Gateway); ok && off >= first && off <= last && r.excluded(r.Gateway) == nil {
		n--
	}
	return n
}

// covered reports whether another prefix contains that one, so that it does not count.
func covered(all []netip.Prefix, i int) bool {
	for j, o := range all {
		if o.Contains(all[i].Addr()) && (o.Bits() < all[i].Bits() || o.Masked() == all[i].Masked() && j < i) {
			return true
		}
	}
	return false
}

// span returns the offsets within the bounds that an excluded prefix covers.
func (r *Range) span(e netip.Prefix) (lo, hi uint64, ok bool) {
	first, last, ok := r.Bounds()
	if !ok || !e.Overlaps(r.CIDR) {
		return 0, 0, false
	}
	if e.Bits() <= r.CIDR.Bits() {
		return first, last, true
	}
	lo, ok = Offset(r.CIDR, e.Masked().Addr())
	if !ok {
		return 0, 0, false
	}
	size := uint64(1) << min(e.Addr().BitLen()-e.Bits(), 62)
	hi = lo + size - 1
	lo, hi = max(lo, first), min(hi, last)
	return lo, hi, lo <= hi
}

// Choose returns up to n offsets that are handed out and not taken. It begins at the offset start and goes around, and
// does not walk over what is excluded: the steps are bounded by what is taken, not by the range.
func (r *Range) Choose(taken map[uint64]bool, start uint64, n int) []uint64 {
	first, last, ok := r.Bounds()
	if !ok || n <= 0 {
		return nil
	}
	if start < first || start > last {
		start = first
	}
	out := r.choose(nil, taken, start, last, n)
	if len(out) < n && start > first {
		out = r.choose(out, taken, first, start-1, n)
	}
	return out
}

func (r *Range) choose(out []uint64, taken map[uint64]bool, from, to uint64, n int) []uint64 {
	for off := from; off <= to && len(out) < n; off++ {
		if taken[off] {
			continue
		}
		a, ok := Addr(r.CIDR, off)
		if !ok {
			break
		}
		if e := r.excluded(a); e != nil {
			if _, hi, ok := r.span(*e); ok && hi > off {
				off = hi
			}
			continue
		}
		if a != r.Gateway {
			out = append(out, off)
		}
	}
	return out
}

// Count is a number of addresses for people: pools of IPv6 are large.
func Count(n uint64) string {
	if n < 1<<32 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("2^%d", new(big.Int).SetUint64(n).BitLen()-1)
}
