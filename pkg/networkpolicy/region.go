// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"
	"slices"
)

// A region is the addresses of a network that are in none of the networks inside it. The networks are those that live blocks name,
// so all addresses of a region are in the same blocks. Prefixes are in 16-byte form.
type region struct {
	prefix netip.Prefix
	parent *region // nil for a network that is in no other
	attrs  bitset  // blocks that contain it
	cell   *regionCell
	pods   bool // in a network of pods: an address that no pod is known to have may be a pod's
}

// regionCell is all regions in the same blocks.
type regionCell struct {
	attrs bitset
	key   string
}

// regions has all regions. Addresses outside of all networks are in the cell other.
type regions struct {
	podNetworks []netip.Prefix // in 16-byte form
	list        []*region      // sorted, so that a network is before what it contains
	cells       map[string]*regionCell
	other       *regionCell
}

// allIPv4 is what IPv4 addresses have in common. Without a region of its own, an IPv6 network as short as ::/0 would contain them.
var allIPv4 = netip.PrefixFrom(netip.AddrFrom16(netip.IPv4Unspecified().As16()), 96)

func newRegions(podNetworks []netip.Prefix) *regions {
	r := &regions{cells: map[string]*regionCell{}}
	r.other = r.cell(nil)
	for _, p := range podNetworks {
		if p.IsValid() {
			r.podNetworks = append(r.podNetworks, wide(p))
		}
	}
	r.rebuild(nil)
	return r
}

// wide returns a network in 16-byte form.
func wide(p netip.Prefix) netip.Prefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), bits).Masked()
}

func (r *regions) cell(attrs bitset) *regionCell {
	key := attrs.key()
	c := r.cells[key]
	if c == nil {
		c = &regionCell{attrs: attrs, key: key}
		r.cells[key] = c
	}
	return c
}

// rebuild makes the regions of the blocks that are live. Cells that regions still have remain the same.
func (r *regions) rebuild(live []*atom) {
	begin, end := map[netip.Prefix][]int{}, map[netip.Prefix][]int{}
	prefixes := slices.Clone(r.podNetworks)
	for _, a := range live {
		p := wide(a.cidr)
		prefixes = append(prefixes, p)
		begin[p] = append(begin[p], a.id)
		for _, e := range a.except {
			p := wide(e)
			prefixes = append(prefixes, p)
			end[p] = append(end[p], a.id)
		}
	}
	if len(prefixes) > 0 {
		prefixes = append(prefixes, allIPv4)
	}
	slices.SortFunc(prefixes, comparePrefixes)
	prefixes = slices.Compact(prefixes)
	r.list = make([]*region, 0, len(prefixes))
	used := map[string]*regionCell{r.other.key: r.other}
	var above []*region // the networks around the next one
	for _, p := range prefixes {
		for len(above) > 0 && !above[len(above)-1].prefix.Contains(p.Addr()) {
			above = above[:len(above)-1]
		}
		next := &region{prefix: p}
		if len(above) > 0 {
			next.parent = above[len(above)-1]
			if p != allIPv4 {
				next.attrs, next.pods = slices.Clone(next.parent.attrs), next.parent.pods
			}
		}
		for _, id := range end[p] {
			next.attrs.clear(id)
		}
		for _, id := range begin[p] {
			next.attrs.set(id)
		}
		next.pods = next.pods || slices.Contains(r.podNetworks, p)
		next.cell = r.cell(next.attrs)
		used[next.cell.key] = next.cell
		r.list = append(r.list, next)
		above = append(above, next)
	}
	r.cells = used
}

// find returns the region of an address, nil if it is in no network.
func (r *regions) find(addr netip.Addr) *region {
	i, exact := slices.BinarySearchFunc(r.list, addr, func(n *region, a netip.Addr) int { return n.prefix.Addr().Compare(a) })
	for exact && i+1 < len(r.list) && r.list[i+1].prefix.Addr() == addr {
		i++ // several networks begin with the address: the longest is the last
	}
	if !exact {
		i--
	}
	if i < 0 {
		return nil
	}
	n := r.list[i]
	for n != nil && !n.prefix.Contains(addr) {
		n = n.parent
	}
	return n
}

func (r *regions) cellOf(addr netip.Addr) *regionCell {
	if n := r.find(addr); n != nil {
		return n.cell
	}
	return r.other
}
