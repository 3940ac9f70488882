// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Modes of a macvlan (enum macvlan_mode of <linux/if_link.h>).
const (
	MacvlanPrivate  uint32 = 1
	MacvlanVEPA     uint32 = 2
	MacvlanBridge   uint32 = 4
	MacvlanPassthru uint32 = 8
)

// Modes of an ipvlan (enum ipvlan_mode).
const (
	IPVLANL2  uint16 = 0
	IPVLANL3  uint16 = 1
	IPVLANL3S uint16 = 2
)

// From <linux/if_link.h>; x/sys does not have all of them.
const (
	attrMacvlanMode       = 1 // IFLA_MACVLAN_MODE
	attrMacvlanBCQueueLen = 7 // IFLA_MACVLAN_BC_QUEUE_LEN, Linux 5.11
	attrIPVLANMode        = 1 // IFLA_IPVLAN_MODE
	attrVLANID            = 1 // IFLA_VLAN_ID
)

// Sub holds what this project sets or checks of a link that sits on another one.
type Sub struct {
	MacvlanMode uint32
	BCQueueLen  uint32 // wanted broadcast queue of a macvlan, in packets; 0 also where the kernel does not say
	IPVLANMode  uint16
	VLANID      uint16
}

// SubSpec describes a link of one of the kinds "macvlan", "ipvlan", "vlan" and "dummy".
type SubSpec struct {
	Kind string
	Name string
	Sub
	MAC    net.HardwareAddr // nil: the kernel chooses
	MTU    int              // 0: the parent's
	Parent int              // index of the link it sits on, in the handle's namespace; 0 for a dummy
	NS     int              // descriptor of the namespace it is born in; <= 0: the handle's own
}

// subTries bounds the indexes that are tried when one is taken.
const subTries = 16

// AddSub makes the link with one RTM_NEWLINK, in its namespace and under its name, so that it is never moved or renamed (both
// cost an RCU grace period). The error wraps ErrExist when the name is taken there, or a VLAN of that id exists on the parent;
// ErrNotSupported when the kernel has no such kind.
func (h *Handle) AddSub(s SubSpec) error {
	err := h.addSub(s, 0)
	// Before 6.15 the kernel looks for the name in the namespace of the socket too, where a node has an eth0 of its own. With a
	// wanted index it does not. The index must be free in both namespaces.
	for try := 0; s.NS > 0 && try < subTries && (try == 0 && errors.Is(err, unix.EEXIST) || try > 0 && errors.Is(err, unix.EBUSY)); try++ {
		err = h.addSub(s, 1<<12+rand.Int32N(1<<20))
	}
	if err != nil {
		return fmt.Errorf("add %s %q on link index %d: %w", s.Kind, s.Name, s.Parent, err)
	}
	return nil
}

func (h *Handle) addSub(s SubSpec, index int32) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = index
	req.AddData(msg)
	for _, a := range endAttrs(s.Name, s.MAC, s.MTU) {
		req.AddData(a)
	}
	if s.Parent > 0 {
		req.AddData(attr32(unix.IFLA_LINK, uint32(s.Parent)))
	}
	if s.NS > 0 {
		req.AddData(attr32(unix.IFLA_NET_NS_FD, uint32(s.NS)))
	}
	req.AddData(s.info())
	return h.do(req)
}

func (s *SubSpec) info() *vnl.RtAttr {
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(s.Kind))
	if s.Kind == "dummy" {
		return info
	}
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	switch s.Kind {
	case "macvlan":
		data.AddRtAttr(attrMacvlanMode, vnl.Uint32Attr(s.MacvlanMode))
		if s.BCQueueLen > 0 {
			data.AddRtAttr(attrMacvlanBCQueueLen, vnl.Uint32Attr(s.BCQueueLen))
		}
	case "ipvlan":
		data.AddRtAttr(attrIPVLANMode, vnl.Uint16Attr(s.IPVLANMode))
	case "vlan":
		data.AddRtAttr(attrVLANID, vnl.Uint16Attr(s.VLANID))
	}
	return info
}

func (l *Link) parseSub(data []byte) error {
	return walk(data, func(kind uint16, v []byte) {
		switch {
		case l.Kind == "macvlan" && kind == attrMacvlanMode:
			l.Sub.MacvlanMode = u32(v)
		case l.Kind == "macvlan" && kind == attrMacvlanBCQueueLen:
			l.Sub.BCQueueLen = u32(v)
		case l.Kind == "ipvlan" && kind == attrIPVLANMode:
			l.Sub.IPVLANMode = u16(v)
		case l.Kind == "vlan" && kind == attrVLANID:
			l.Sub.VLANID = u16(v)
		}
	})
}

// Supports reports whether the kernel can make links of a kind, loading its module if need be; the error wraps ErrNotSupported
// when it cannot. It asks for a link that no kernel makes (no parent, a multicast address), so nothing is ever left.
func (h *Handle) Supports(kind string) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(attr(unix.IFLA_ADDRESS, []byte{1, 0, 0, 0, 0, 0}))
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(kind))
	req.AddData(info)
	switch err := h.do(req); {
	case errors.Is(err, ErrNotSupported), errors.Is(err, unix.EPERM):
		return fmt.Errorf("links of kind %q: %w", kind, err)
	}
	return nil
}
