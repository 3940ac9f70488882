// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteQuery describes a packet. Zero fields are not given to the kernel.
type RouteQuery struct {
	Src, Dst         netip.Addr
	In               int    // index of the device that the packet comes in by; 0: a process of the host sends it
	Mark             uint32 // skb->mark
	Proto            uint8  // TCP, UDP or ICMP of the family
	SrcPort, DstPort uint16 // of TCP and UDP
}

// offRtmFlags is the place of rtm_flags in struct rtmsg.
const offRtmFlags = 8

// AskRoute returns what the kernel's routing decides about a packet: rules, marks and the check of its source count, sysctls of
// forwarding do so for IPv4. Type is unix.RTN_LOCAL for the host itself. The error is the kernel's errno.
func (h *Handle) AskRoute(q RouteQuery) (Route, error) {
	dst := q.Dst.Unmap()
	req := h.request(unix.RTM_GETROUTE, 0)
	msg := &vnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(FamilyOf(dst)), Dst_len: uint8(dst.BitLen())}}
	req.AddData(msg)
	req.AddData(attr(unix.RTA_DST, dst.AsSlice()))
	if src := q.Src.Unmap(); src.IsValid() {
		msg.Src_len = uint8(src.BitLen())
		req.AddData(attr(unix.RTA_SRC, src.AsSlice()))
	}
	if q.In != 0 {
		req.AddData(attr32(unix.RTA_IIF, uint32(q.In)))
	}
	if q.Mark != 0 {
		req.AddData(attr32(unix.RTA_MARK, q.Mark))
	}
	if q.Proto != 0 {
		req.AddData(attr(unix.RTA_IP_PROTO, []byte{q.Proto}))
	}
	for kind, port := range map[int]uint16{unix.RTA_SPORT: q.SrcPort, unix.RTA_DPORT: q.DstPort} {
		if port != 0 {
			req.AddData(attr(kind, binary.BigEndian.AppendUint16(nil, port)))
		}
	}
	m, err := h.get(req, unix.RTM_NEWROUTE)
	if err != nil {
		return Route{}, fmt.Errorf("ask for the route to %s: %w", dst, err)
	}
	if len(m) >= unix.SizeofRtMsg { // it is no entry of a table, which parseRoute would pass over
		m = slices.Clone(m)
		flags := binary.NativeEndian.Uint32(m[offRtmFlags:])
		binary.NativeEndian.PutUint32(m[offRtmFlags:], flags&^unix.RTM_F_CLONED)
	}
	routes, err := parseRoute(m)
	if err != nil || len(routes) == 0 {
		return Route{}, errors.Join(err, fmt.Errorf("ask for the route to %s: %w", dst, ErrNotFound))
	}
	return routes[0], nil
}

// Neighbour is an entry of the neighbour table (ARP, NDP).
type Neighbour struct {
	MAC   net.HardwareAddr
	State uint16 // unix.NUD_*
}

// Reaches reports whether the kernel sends to the neighbour without asking first.
func (n Neighbour) Reaches() bool {
	return n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP|unix.NUD_REACHABLE|unix.NUD_PROBE|unix.NUD_STALE|unix.NUD_DELAY) != 0
}

// Neighbour returns the entry of an address on a device. The error wraps ErrNotFound when there is none: the kernel has not asked yet.
// Linux 5.0.
func (h *Handle) Neighbour(index int, addr netip.Addr) (Neighbour, error) {
	addr = addr.Unmap()
	req := h.request(unix.RTM_GETNEIGH, 0)
	body := make([]byte, unix.SizeofNdMsg)
	body[0] = uint8(FamilyOf(addr))
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	req.AddRawData(slices.Concat(body, attr(unix.NDA_DST, addr.AsSlice()).Serialize()))
	m, err := h.get(req, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		err = sentinelError{ErrNotFound, err}
	}
	if err != nil {
		return Neighbour{}, fmt.Errorf("neighbour %s: %w", addr, err)
	}
	if len(m) < unix.SizeofNdMsg {
		return Neighbour{}, fmt.Errorf("neighbour %s: answer of %d bytes: %w", addr, len(m), unix.EINVAL)
	}
	n := Neighbour{State: binary.NativeEndian.Uint16(m[8:])}
	err = walk(m[unix.SizeofNdMsg:], func(kind uint16, v []byte) {
		if kind == unix.NDA_LLADDR {
			n.MAC = slices.Clone(v)
		}
	})
	return n, err
}
