// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Scopes of addresses and routes.
const (
	ScopeUniverse uint8 = unix.RT_SCOPE_UNIVERSE
	ScopeLink     uint8 = unix.RT_SCOPE_LINK
	ScopeHost     uint8 = unix.RT_SCOPE_HOST
)

// Addr is an address of a link.
type Addr struct {
	LinkIndex int
	Prefix    netip.Prefix // the link's own address with the length of its subnet; never v4-mapped
	Peer      netip.Addr   `json:",omitzero"` // the other side's on a point-to-point link, whose subnet it is then; invalid when there is none
	Scope     uint8
	Flags     uint32 // IFA_F_*
}

// Tentative reports that duplicate address detection is not finished; the address cannot be used yet.
func (a Addr) Tentative() bool {
	return a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0
}

// DADFailed reports that duplicate address detection found another owner.
func (a Addr) DADFailed() bool { return a.Flags&unix.IFA_F_DADFAILED != 0 }

// Addrs returns the addresses of all links; family is FamilyAll, FamilyV4 or FamilyV6.
func (h *Handle) Addrs(family int) ([]Addr, error) { return h.addrs(0, family) }

// AddrsOf returns the addresses of one link; the kernel filters. A link that is gone gives ErrNotFound.
func (h *Handle) AddrsOf(index, family int) ([]Addr, error) {
	if index <= 0 {
		return nil, fmt.Errorf("addresses of link index %d: %w", index, ErrNotFound)
	}
	return h.addrs(index, family)
}

func (h *Handle) addrs(index, family int) ([]Addr, error) {
	var addrs []Addr
	err := h.dump(func() *vnl.NetlinkRequest {
		req := h.request(unix.RTM_GETADDR, 0)
		msg := vnl.NewIfAddrmsg(family)
		msg.Index = uint32(index)
		req.AddData(msg)
		return req
	}, unix.RTM_NEWADDR, func() { addrs = addrs[:0] }, func(m []byte) error {
		a, err := parseAddr(m)
		if err == nil && a.Prefix.IsValid() && (index == 0 || a.LinkIndex == index) {
			addrs = append(addrs, a)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

func parseAddr(m []byte) (Addr, error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return Addr{}, fmt.Errorf("address message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeIfAddrmsg(m)
	a := Addr{LinkIndex: int(msg.Index), Scope: msg.Scope, Flags: uint32(msg.IfAddrmsg.Flags)}
	var local, address netip.Addr
	err := walk(m[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS: // the same flags and those that do not fit the header's byte
			a.Flags = u32(v)
		}
	})
	if !local.IsValid() { // on a point-to-point link IFA_ADDRESS is the other side's, else the two are one
		local = address
	}
	if address != local {
		a.Peer = address
	}
	if local.IsValid() {
		a.Prefix = netip.PrefixFrom(local, int(msg.Prefixlen))
	}
	return a, err
}

// AddAddr adds a.Prefix to the link a.LinkIndex, for ever, with a.Flags (for example IFA_F_NODAD). The error wraps ErrExist
// when the link has it.
func (h *Handle) AddAddr(a Addr) error {
	req := h.addrRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, a)
	if a.Flags != 0 {
		req.AddData(attr32(unix.IFA_FLAGS, a.Flags))
	}
	if a.Prefix.Addr().Is4() && a.Prefix.Bits() < 31 && !a.Peer.IsValid() {
		req.AddData(attr(unix.IFA_BROADCAST, broadcast(a.Prefix)))
	}
	if err := h.do(req); err != nil {
		return fmt.Errorf("add address %s to link index %d: %w", a.Prefix, a.LinkIndex, err)
	}
	return nil
}

// DelAddr removes a.Prefix from the link a.LinkIndex. The error wraps ErrNotFound when the link does not have it.
func (h *Handle) DelAddr(a Addr) error {
	if err := h.do(h.addrRequest(unix.RTM_DELADDR, 0, a)); err != nil {
		return fmt.Errorf("delete address %s of link index %d: %w", a.Prefix, a.LinkIndex, err)
	}
	return nil
}

func (h *Handle) addrRequest(msgType, flags int, a Addr) *vnl.NetlinkRequest {
	req := h.request(msgType, flags)
	msg := vnl.NewIfAddrmsg(FamilyOf(a.Prefix.Addr()))
	msg.Index = uint32(a.LinkIndex)
	msg.Prefixlen = uint8(a.Prefix.Bits())
	msg.Scope = a.Scope
	req.AddData(msg)
	local, address := a.Prefix.Addr(), a.Prefix.Addr()
	if a.Peer.IsValid() {
		address = a.Peer
	}
	req.AddData(attr(unix.IFA_LOCAL, local.Unmap().AsSlice()))
	req.AddData(attr(unix.IFA_ADDRESS, address.Unmap().AsSlice()))
	return req
}

// FamilyOf returns the family of an address: FamilyV4 also for an IPv4-mapped one.
func FamilyOf(a netip.Addr) int {
	if a.Unmap().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// broadcast returns the last address of an IPv4 prefix, as the upstream plugins set it.
func broadcast(p netip.Prefix) []byte {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return b[:]
}
