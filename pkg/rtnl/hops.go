// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Hops yields routes of a table in an order in which they can be made again, each as a list of one, but next hops of a Multipath
// route that follow each other and are by one link as the list that AddHops takes. Those without a gateway come first, because
// others may reach their gateways by them. Of equal IPv4 routes the last comes first: the kernel puts a new one before its equals.
func Hops(routes []Route) iter.Seq[[]Route] {
	var direct, gated, direct6, gated6 [][]Route
	for len(routes) > 0 {
		r, n := routes[0], 1
		for r.Multipath && n < len(routes) && r.SharesHops(routes[n]) && routes[n].LinkIndex == r.LinkIndex {
			n++
		}
		into := &direct
		switch v4, gateway := r.Dst.Addr().Is4(), r.Gateway.IsValid(); {
		case v4 && gateway:
			into = &gated
		case !v4 && gateway:
			into = &gated6
		case !v4:
			into = &direct6
		}
		*into = append(*into, routes[:n])
		routes = routes[n:]
	}
	slices.Reverse(direct)
	slices.Reverse(gated)
	return slices.Values(slices.Concat(direct, direct6, gated, gated6))
}

// SharesHops reports that r and o differ in no more than next hops of one Multipath route do: gateway, link, onlink and weight.
func (r Route) SharesHops(o Route) bool {
	r.Gateway, r.LinkIndex, r.Onlink, r.Weight = o.Gateway, o.LinkIndex, o.Onlink, o.Weight
	return r == o
}

// AddHops adds one route by the gateways of all hops. A connection takes one of them. The hops differ in nothing else.
// Several are for IPv4: of IPv6 routes that AddRoute adds one by one the kernel makes such a route itself.
func (h *Handle) AddHops(hops []Route) error {
	r := hops[0]
	if len(hops) == 1 {
		return h.AddRoute(r)
	}
	nexthops := hopsAttr(hops)
	r.LinkIndex, r.Gateway, r.Onlink = 0, netip.Addr{}, false
	req := h.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r)
	req.AddData(nexthops)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add route to %s via %d gateways from %s on: %w", r, len(hops), hops[0].Gateway, err)
	}
	return nil
}

// hopsAttr is RTA_MULTIPATH: a struct rtnexthop for each hop, with its attribute behind it.
func hopsAttr(hops []Route) *vnl.RtAttr {
	var b []byte
	for _, hop := range hops {
		var flags byte
		if hop.Onlink {
			flags = unix.RTNH_F_ONLINK
		}
		var gateway []byte
		if hop.Gateway.IsValid() { // else it is on the link
			gateway = gatewayAttr(hop.Dst.Addr(), hop.Gateway).Serialize()
		}
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtNexthop+len(gateway)))
		b = append(b, flags, hop.Weight)
		b = binary.NativeEndian.AppendUint32(b, uint32(hop.LinkIndex))
		b = append(b, gateway...)
	}
	return attr(unix.RTA_MULTIPATH, b)
}
