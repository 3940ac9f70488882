// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Hops yields the routes in their order, each as a list of one, but next hops of a Multipath route that follow each other and
// are by one link as the list that AddHops takes.
func Hops(routes []Route) iter.Seq[[]Route] {
	return func(yield func([]Route) bool) {
		for len(routes) > 0 {
			r, n := routes[0], 1
			for r.Multipath && n < len(routes) && r.SharesHops(routes[n]) && routes[n].LinkIndex == r.LinkIndex {
				n++
			}
			if !yield(routes[:n]) {
				return
			}
			routes = routes[n:]
		}
	}
}

// SharesHops reports that r and o differ in no more than next hops of one Multipath route do: gateway and link.
func (r Route) SharesHops(o Route) bool {
	r.Gateway, r.LinkIndex = o.Gateway, o.LinkIndex
	return r == o
}

// AddHops adds one route by the gateways of all hops. A connection takes one of them. The hops differ in nothing else.
// Several are for IPv4: of IPv6 routes that AddRoute adds one by one the kernel makes such a route itself.
func (h *Handle) AddHops(hops []Route) error {
	r := hops[0]
	if len(hops) == 1 {
		return h.AddRoute(r)
	}
	var gateways []netip.Addr
	for _, hop := range hops {
		gateways = append(gateways, hop.Gateway)
	}
	nexthops := hopsAttr(r, gateways)
	r.LinkIndex, r.Gateway = 0, netip.Addr{}
	req := h.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r)
	req.AddData(nexthops)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add route to %s via %v: %w", r, gateways, err)
	}
	return nil
}

// hopsAttr is RTA_MULTIPATH: a struct rtnexthop for each gateway, with its attribute behind it.
func hopsAttr(r Route, gateways []netip.Addr) *vnl.RtAttr {
	var b []byte
	var flags byte
	if r.Onlink {
		flags = unix.RTNH_F_ONLINK
	}
	for _, g := range gateways {
		var via []byte
		if g.IsValid() { // else it is on the link
			via = attr(unix.RTA_GATEWAY, g.Unmap().AsSlice()).Serialize()
		}
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtNexthop+len(via)))
		b = append(b, flags, 0) // the weight 1 is written as 0
		b = binary.NativeEndian.AppendUint32(b, uint32(r.LinkIndex))
		b = append(b, via...)
	}
	return attr(unix.RTA_MULTIPATH, b)
}
