// SPDX-License-Identifier: Apache-2.0

// Package pool is the model of a cluster-wide pool of addresses: ranges, the names of objects, the encoding of
// allocations, and which addresses come next. It is pure, and it is whereabouts' encoding to the byte.
//
// The plugin, the claims and the stores use it. It must not know a store, a file or a clock.
package pool

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
)

// MaxOffset is the largest offset of an address in its pool. whereabouts reads offsets as signed 64-bit numbers, and
// drops those that do not fit.
const MaxOffset = 1<<63 - 1

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

// Offset returns the distance of an address from the first address of the network. It reports false for an address
// outside the network or further away than MaxOffset.
func Offset(p netip.Prefix, a netip.Addr) (uint64, bool) {
	if !p.Contains(a) {
		return 0, false
	}
	base, addr := p.Masked().Addr().As16(), a.As16()
	hi := binary.BigEndian.Uint64(addr[:8]) - binary.BigEndian.Uint64(base[:8])
	low, below := binary.BigEndian.Uint64(addr[8:]), binary.BigEndian.Uint64(base[8:])
	if low < below || hi != 0 || low-below > MaxOffset {
		return 0, false
	}
	return low - below, true
}

// Addr returns the address at an offset. It reports false if the network has no such address.
func Addr(p netip.Prefix, offset uint64) (netip.Addr, bool) {
	base := p.Masked().Addr()
	b := base.As16()
	low := binary.BigEndian.Uint64(b[8:])
	if offset > MaxOffset || low+offset < low {
		return netip.Addr{}, false
	}
	binary.BigEndian.PutUint64(b[8:], low+offset)
	a := netip.AddrFrom16(b)
	if base.Is4() {
		a = a.Unmap()
	}
	return a, p.Contains(a)
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

// Overlaps reports whether an address is in both networks.
func Overlaps(a, b netip.Prefix) bool { return a.Overlaps(b) }

// Key is an offset as whereabouts writes it.
func Key(offset uint64) string { return strconv.FormatUint(offset, 10) }

// ParseKey is the reverse of Key. It accepts what whereabouts accepts.
func ParseKey(s string) (uint64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("allocation %q: not an offset", s)
	}
	return uint64(n), nil
}

// Name returns the name of the object of a range. node is set for a slice of a node only.
func Name(network, node, cidr string) string {
	name := normal(cidr)
	if node != "" {
		name = node + "-" + name
	}
	if network != "" {
		name = network + "-" + name
	}
	return name
}

// SliceNode returns the node whose slice a pool of that name and range is, if it is one of the network. The name of another
// network looks the same: the caller has to know whether there is such a node.
func SliceNode(network, name, cidr string) (string, bool) {
	node, ok := strings.CutSuffix(name, "-"+normal(cidr))
	if network != "" && ok {
		node, ok = strings.CutPrefix(node, network+"-")
	}
	return node, ok && node != ""
}

// ReservationName returns the name of the object that reserves an address over all pools of a network.
func ReservationName(network string, a netip.Addr) string {
	name := normal(a.String())
	if network != "" {
		name = network + "-" + name
	}
	return name
}

// ReservedAddr returns the address of ReservationName.
func ReservedAddr(network, name string) (netip.Addr, bool) {
	text := name
	if network != "" {
		var ok bool
		if text, ok = strings.CutPrefix(name, network+"-"); !ok {
			return netip.Addr{}, false
		}
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return a, err == nil && a.Zone() == "" && ReservationName(network, a) == name
}

// normal makes a range or an address part of an object's name.
func normal(s string) string {
	if strings.HasSuffix(s, ":") {
		s += "0"
	}
	return strings.NewReplacer(":", "-", "/", "-").Replace(s)
}

// Count is a number of addresses for people: pools of IPv6 are large.
func Count(n uint64) string {
	if n < 1<<32 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("2^%d", new(big.Int).SetUint64(n).BitLen()-1)
}
