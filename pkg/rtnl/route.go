// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Routing tables that have names.
const (
	TableMain  = unix.RT_TABLE_MAIN
	TableLocal = unix.RT_TABLE_LOCAL
)

// Route is a route, or one next hop of a multipath route: such a route is listed once for each next hop.
type Route struct {
	LinkIndex int          // 0 for unreachable, blackhole and the like
	Dst       netip.Prefix // 0.0.0.0/0 or ::/0 for the default route
	Gateway   netip.Addr   // invalid when the destination is on the link
	Src       netip.Addr   // preferred source; invalid when there is none
	Table     int          // 0 in AddRoute: main
	Scope     uint8
	Type      uint8 // RTN_*; 0 in AddRoute: unicast
	Protocol  uint8 // RTPROT_*; 0 in AddRoute: boot, as ip-route and the upstream plugins set it
	Priority  int
	MTU       int
	AdvMSS    int
	Onlink    bool // the gateway need not be inside a subnet of the link
	// Multipath marks the next hops of an IPv4 multipath route, which is made and deleted as a whole. IPv6 has each by itself.
	Multipath bool  `json:",omitempty"`
	Weight    uint8 `json:",omitempty"` // of a next hop of such a route, less one, as rtnh_hops of the kernel
}

// RouteFilter says which routes RoutesWhere returns; zero fields accept all. The kernel filters.
type RouteFilter struct {
	Family    int
	Table     int
	LinkIndex int
}

// Routes returns the routes of the main table.
func (h *Handle) Routes(family int) ([]Route, error) {
	return h.RoutesWhere(RouteFilter{Family: family, Table: TableMain})
}

// AllRoutes returns the routes of every table, with those of the local table.
func (h *Handle) AllRoutes(family int) ([]Route, error) {
	return h.RoutesWhere(RouteFilter{Family: family})
}

// RoutesWhere returns the routes that f accepts.
func (h *Handle) RoutesWhere(f RouteFilter) ([]Route, error) {
	var all []Route
	for _, family := range families(f.Family) { // a strict dump of one table needs a family
		part, err := h.routesOf(family, f)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		all = append(all, part...)
	}
	return all, nil
}

// RouteTo returns the route that the kernel takes to dst, as it is in its table, by one lookup however large the tables are. With
// an index it is the route by that device. The error wraps ErrNotFound when there is none, or when packets to dst are refused.
func (h *Handle) RouteTo(dst netip.Addr, index int) (Route, error) {
	dst = dst.Unmap()
	req := h.request(unix.RTM_GETROUTE, 0)
	req.AddData(&vnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(FamilyOf(dst)), Dst_len: uint8(dst.BitLen()), Flags: unix.RTM_F_FIB_MATCH}})
	req.AddData(attr(unix.RTA_DST, dst.AsSlice()))
	if index != 0 {
		req.AddData(attr32(unix.RTA_OIF, uint32(index)))
	}
	m, err := h.get(req, unix.RTM_NEWROUTE)
	if noRoute(err) {
		err = sentinelError{ErrNotFound, err}
	}
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	routes, err := parseRoute(m)
	for _, r := range routes {
		if err == nil && (index == 0 || r.LinkIndex == index) {
			return r, nil
		}
	}
	return Route{}, errors.Join(err, fmt.Errorf("route to %s: %w", dst, ErrNotFound))
}

// noRoute says of the kernel's answer to a lookup that there is no route, or one of a type that refuses packets (fib_props).
func noRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL)
}

func families(family int) []int {
	if family == FamilyAll {
		return []int{FamilyV4, FamilyV6}
	}
	return []int{family}
}

func (h *Handle) routesOf(family int, f RouteFilter) ([]Route, error) {
	var routes []Route
	err := h.dump(func() *vnl.NetlinkRequest {
		req := h.request(unix.RTM_GETROUTE, 0)
		req.AddData(&vnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
		if f.Table != 0 {
			req.AddData(attr32(unix.RTA_TABLE, uint32(f.Table)))
		}
		if f.LinkIndex != 0 {
			req.AddData(attr32(unix.RTA_OIF, uint32(f.LinkIndex)))
		}
		return req
	}, unix.RTM_NEWROUTE, func() { routes = routes[:0] }, func(m []byte) error {
		rs, err := parseRoute(m)
		for _, r := range rs {
			if (f.Table == 0 || r.Table == f.Table) && (f.LinkIndex == 0 || r.LinkIndex == f.LinkIndex) {
				routes = append(routes, r)
			}
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) { // the table does not exist: it has no routes
		return nil, nil
	}
	return routes, err
}

func parseRoute(m []byte) ([]Route, error) {
	if len(m) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("route message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeRtMsg(m)
	if msg.Flags&unix.RTM_F_CLONED != 0 || (msg.Family != unix.AF_INET && msg.Family != unix.AF_INET6) {
		return nil, nil // route cache and multicast routing
	}
	r := Route{Table: int(msg.Table), Scope: msg.Scope, Type: msg.Type, Protocol: msg.Protocol, Onlink: msg.Flags&unix.RTNH_F_ONLINK != 0}
	dst := netip.IPv4Unspecified()
	if msg.Family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	var hops, metrics []byte
	err := walk(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA:
			r.Gateway = via(v)
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(v)
		case unix.RTA_OIF:
			r.LinkIndex = int(u32(v))
		case unix.RTA_TABLE:
			r.Table = int(u32(v))
		case unix.RTA_PRIORITY:
			r.Priority = int(u32(v))
		case unix.RTA_METRICS:
			metrics = v
		case unix.RTA_MULTIPATH:
			hops = v
		}
	})
	r.Dst = netip.PrefixFrom(dst, int(msg.Dst_len))
	err = errors.Join(err, walk(metrics, func(kind uint16, v []byte) {
		switch kind {
		case unix.RTAX_MTU:
			r.MTU = int(u32(v))
		case unix.RTAX_ADVMSS:
			r.AdvMSS = int(u32(v))
		}
	}))
	if err != nil || len(hops) == 0 {
		return []Route{r}, err
	}
	return splitHops(r, hops)
}

// splitHops makes one route of each struct rtnexthop in b.
func splitHops(r Route, b []byte) ([]Route, error) {
	var routes []Route
	for len(b) >= unix.SizeofRtNexthop {
		n := int(u16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			return nil, fmt.Errorf("next hop of %d bytes in %d: %w", n, len(b), unix.EINVAL)
		}
		one := r
		one.Multipath = r.Dst.Addr().Is4()
		one.LinkIndex = int(u32(b[4:]))
		one.Onlink = r.Onlink || b[2]&unix.RTNH_F_ONLINK != 0
		if one.Multipath {
			one.Weight = b[3]
		}
		if err := walk(b[unix.SizeofRtNexthop:n], func(kind uint16, v []byte) {
			switch kind {
			case unix.RTA_GATEWAY:
				one.Gateway, _ = netip.AddrFromSlice(v)
			case unix.RTA_VIA:
				one.Gateway = via(v)
			}
		}); err != nil {
			return nil, err
		}
		routes = append(routes, one)
		n = (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		if n >= len(b) {
			break
		}
		b = b[n:]
	}
	return routes, nil
}

// via reads struct rtvia: a family and a gateway that may be of another family than the route.
func via(v []byte) netip.Addr {
	if len(v) < 2 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(v[2:])
	return a
}

// gatewayAttr is RTA_VIA where an IPv4 route has an IPv6 gateway, else RTA_GATEWAY.
func gatewayAttr(dst, gateway netip.Addr) *vnl.RtAttr {
	gateway = gateway.Unmap()
	if dst.Is4() && gateway.Is6() {
		return attr(unix.RTA_VIA, append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), gateway.AsSlice()...))
	}
	return attr(unix.RTA_GATEWAY, gateway.AsSlice())
}

// AddRoute adds r. A route to the same destination by another gateway may exist; an identical one gives ErrExist.
func (h *Handle) AddRoute(r Route) error {
	flags := unix.NLM_F_CREATE
	if err := h.do(h.routeRequest(unix.RTM_NEWROUTE, flags, r)); err != nil {
		return fmt.Errorf("add route to %s: %w", r, err)
	}
	return nil
}

// AddOnlyRoute adds r if there is no route with the same destination, table and priority: else the error wraps ErrExist.
func (h *Handle) AddOnlyRoute(r Route) error {
	if err := h.do(h.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r)); err != nil {
		return fmt.Errorf("add route to %s: %w", r, err)
	}
	return nil
}

// ReplaceRoute adds r in place of a route with the same destination, table and priority, if there is one.
func (h *Handle) ReplaceRoute(r Route) error {
	if err := h.do(h.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, r)); err != nil {
		return fmt.Errorf("set route to %s: %w", r, err)
	}
	return nil
}

// DelRoute removes r. The error wraps ErrNotFound when there is no such route.
func (h *Handle) DelRoute(r Route) error {
	if err := h.do(h.routeRequest(unix.RTM_DELROUTE, 0, r)); err != nil {
		return fmt.Errorf("delete route to %s: %w", r, err)
	}
	return nil
}

func (h *Handle) routeRequest(msgType, flags int, r Route) *vnl.NetlinkRequest {
	req := h.request(msgType, flags)
	msg := &vnl.RtMsg{RtMsg: unix.RtMsg{
		Family:   uint8(FamilyOf(r.Dst.Addr())),
		Dst_len:  uint8(r.Dst.Bits()),
		Scope:    r.Scope,
		Type:     r.Type,
		Protocol: r.Protocol,
		Table:    unix.RT_TABLE_UNSPEC,
	}}
	if r.Onlink {
		msg.Flags |= unix.RTNH_F_ONLINK
	}
	if msg.Type == 0 {
		msg.Type = unix.RTN_UNICAST
	}
	if msg.Protocol == 0 && msgType == unix.RTM_NEWROUTE {
		msg.Protocol = unix.RTPROT_BOOT
	}
	req.AddData(msg)
	table := r.Table
	if table == 0 {
		table = TableMain
	}
	req.AddData(attr32(unix.RTA_TABLE, uint32(table)))
	if r.Dst.Bits() > 0 {
		req.AddData(attr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()))
	}
	if r.Gateway.IsValid() {
		req.AddData(gatewayAttr(r.Dst.Addr(), r.Gateway))
	}
	if r.Src.IsValid() {
		req.AddData(attr(unix.RTA_PREFSRC, r.Src.Unmap().AsSlice()))
	}
	if r.LinkIndex != 0 {
		req.AddData(attr32(unix.RTA_OIF, uint32(r.LinkIndex)))
	}
	if r.Priority != 0 {
		req.AddData(attr32(unix.RTA_PRIORITY, uint32(r.Priority)))
	}
	if r.MTU != 0 || r.AdvMSS != 0 {
		req.AddData(metricsAttr(r))
	}
	return req
}

func metricsAttr(r Route) *vnl.RtAttr {
	m := attr(unix.RTA_METRICS, nil)
	if r.MTU != 0 {
		m.AddRtAttr(unix.RTAX_MTU, vnl.Uint32Attr(uint32(r.MTU)))
	}
	if r.AdvMSS != 0 {
		m.AddRtAttr(unix.RTAX_ADVMSS, vnl.Uint32Attr(uint32(r.AdvMSS)))
	}
	return m
}

// String returns what is set of destination, gateway, link index and table, much as ip-route prints it.
func (r Route) String() string {
	s := r.Dst.String()
	if r.Gateway.IsValid() {
		s += " via " + r.Gateway.String()
	}
	if r.LinkIndex != 0 {
		s += fmt.Sprintf(" dev #%d", r.LinkIndex)
	}
	if r.Table != 0 {
		s += fmt.Sprintf(" table %d", r.Table)
	}
	return s
}
