// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Operational states as Link.OperState has them (RFC 2863).
const (
	OperUnknown = "unknown"
	OperDown    = "down"
	OperUp      = "up"
)

// extSkipStats is RTEXT_FILTER_SKIP_STATS of <linux/rtnetlink.h>: statistics are most of a reply and no code here reads them.
const extSkipStats = 1 << 3

// operStates is in the order of the kernel's IF_OPER_ values.
var operStates = [...]string{OperUnknown, "notpresent", OperDown, "lowerlayerdown", "testing", "dormant", OperUp}

// Link is a network device.
type Link struct {
	Index       int
	PeerIndex   int // IFLA_LINK: a veth's other end (an index of *its* namespace), a vlan's or macvlan's parent; 0 for none
	PeerNetnsID int // id, in this namespace, of the namespace that PeerIndex counts in; -1 when it is this one
	MasterIndex int
	Name        string
	Kind        string // "veth", "bridge", ...; empty for lo and hardware
	OperState   string // OperUp, OperDown, OperUnknown, "lowerlayerdown", ...
	Alias       string
	MAC         net.HardwareAddr
	PermMAC     net.HardwareAddr // burnt into the hardware; nil for most virtual devices
	MTU         int
	TxQLen      int
	// MaxSegmentIPv4 is the size in bytes of the largest segment of IPv4 that the link takes from TCP (gso_ipv4_max_size). 0: the kernel
	// has no such setting, before Linux 6.3.
	MaxSegmentIPv4 int

	Up       bool // administratively up
	Promisc  bool // asked for by a process, not by the device's being a bridge port
	AllMulti bool
	Loopback bool
	Ethernet bool
	Bare     bool // no link header at all: packets begin with the IP header
	PPP      bool
	NoRA     bool // IPv6 is on and takes no router advertisements (accept_ra is 0)

	// Sub holds the settings of a link that sits on another one.
	Sub Sub
	// XDP is the program on the device and how it runs; zero when there is none.
	XDP XDP

	// VLANFiltering is a bridge's setting.
	VLANFiltering bool
	// VRFTable is the routing table of a VRF (kind "vrf"), 0 for anything else.
	VRFTable uint32
	// Port holds the settings of a bridge port, nil for anything else.
	Port *Port
	// TunnelPort is the UDP port on which a VXLAN device (kind "vxlan") waits, 0 for anything else.
	TunnelPort uint16
	// Tun holds the settings of a tun or tap device (kind "tun"), nil for anything else.
	Tun *Tun
}

// XDP modes.
const (
	XDPNative  = "native"  // by the driver
	XDPGeneric = "generic" // by the stack, on any device
	XDPOffload = "offload"
	XDPMulti   = "multi"
)

// XDP is a device's program. With XDPMulti there is one for each mode, and ID is 0.
type XDP struct {
	Mode string
	ID   uint32
}

// Port is what this project sets or checks on a bridge port.
type Port struct {
	Hairpin  bool
	Isolated bool // Linux 4.18
}

// LinkByName returns the link called name. The error wraps ErrNotFound when there is none.
func (h *Handle) LinkByName(name string) (Link, error) {
	l, err := h.getLink(0, name)
	if err != nil {
		return Link{}, fmt.Errorf("link %q: %w", name, err)
	}
	return l, nil
}

// LinkByIndex returns the link with that index. The error wraps ErrNotFound when there is none.
func (h *Handle) LinkByIndex(index int) (Link, error) {
	if index <= 0 {
		return Link{}, fmt.Errorf("link index %d: %w", index, ErrNotFound)
	}
	l, err := h.getLink(index, "")
	if err != nil {
		return Link{}, fmt.Errorf("link index %d: %w", index, err)
	}
	return l, nil
}

// IndexByName returns the index of the link called name. Unlike LinkByName it takes no part in the kernel's turns at links: it
// neither waits for a change that is under way nor brings a pending one of this link forward. The error wraps ErrNotFound when
// there is none; but who expects that asks LinkByName, for the kernel starts modprobe twice to find a driver of that name.
func (h *Handle) IndexByName(name string) (int, error) {
	r, err := unix.NewIfreq(name)
	if err != nil { // no link can have that name
		return 0, fmt.Errorf("link %q: %w", name, ErrNotFound)
	}
	if err := unix.IoctlIfreq(h.sock.fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("link %q: %w", name, classify(err))
	}
	return int(r.Uint32()), nil
}

func (h *Handle) getLink(index int, name string) (Link, error) {
	req := h.request(unix.RTM_GETLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(attr32(unix.IFLA_EXT_MASK, extSkipStats))
	if name != "" {
		kind := unix.IFLA_IFNAME
		if len(name) >= unix.IFNAMSIZ { // only an alternative name is so long
			kind = unix.IFLA_ALT_IFNAME
		}
		if len(name) >= 128 { // ALTIFNAMSIZ: the kernel would say EINVAL; such a link cannot exist
			return Link{}, ErrNotFound
		}
		req.AddData(attrString(kind, name))
	}
	m, err := h.get(req, unix.RTM_NEWLINK)
	if err != nil {
		return Link{}, err
	}
	return parseLink(m)
}

// Links returns all links of the namespace. Verbs that must stay cheap with many pods use LinkByName and LinkByIndex.
func (h *Handle) Links() ([]Link, error) { return h.linksWhere(0) }

// LinksOf returns the ports of the bridge (or other master) with that index; the kernel filters.
func (h *Handle) LinksOf(master int) ([]Link, error) {
	if master <= 0 {
		return nil, fmt.Errorf("ports of link index %d: %w", master, ErrNotFound)
	}
	return h.linksWhere(master)
}

func (h *Handle) linksWhere(master int) ([]Link, error) {
	var links []Link
	err := h.dump(func() *vnl.NetlinkRequest {
		req := h.request(unix.RTM_GETLINK, 0)
		req.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(attr32(unix.IFLA_EXT_MASK, extSkipStats))
		if master != 0 {
			req.AddData(attr32(unix.IFLA_MASTER, uint32(master)))
		}
		return req
	}, unix.RTM_NEWLINK, func() { links = links[:0] }, func(m []byte) error {
		l, err := parseLink(m)
		if err == nil && (master == 0 || l.MasterIndex == master) {
			links = append(links, l)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// bareTypes are the hardware types of devices whose packets begin with the IP header: TUN and WireGuard, PPP, modems, and tunnels
// of IP in IP and GRE (linux/if_arp.h).
func bareTypes() []int {
	return []int{
		unix.ARPHRD_NONE, unix.ARPHRD_PPP, unix.ARPHRD_RAWIP, unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6, unix.ARPHRD_SIT,
		unix.ARPHRD_IPGRE, unix.ARPHRD_IP6GRE,
	}
}

func parseLink(m []byte) (Link, error) {
	if len(m) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("link message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeIfInfomsg(m)
	l := Link{
		Index:       int(msg.Index),
		PeerNetnsID: -1,
		OperState:   OperUnknown,
		Up:          msg.Flags&unix.IFF_UP != 0,
		Promisc:     msg.Flags&unix.IFF_PROMISC != 0,
		AllMulti:    msg.Flags&unix.IFF_ALLMULTI != 0,
		Loopback:    msg.Flags&unix.IFF_LOOPBACK != 0,
		Ethernet:    msg.Type == unix.ARPHRD_ETHER,
		Bare:        slices.Contains(bareTypes(), int(msg.Type)),
		PPP:         msg.Type == unix.ARPHRD_PPP,
	}
	var info []byte
	err := walk(m[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = cstring(v)
		case unix.IFLA_ADDRESS:
			l.MAC = macOf(v)
		case unix.IFLA_PERM_ADDRESS:
			l.PermMAC = macOf(v)
		case unix.IFLA_MTU:
			l.MTU = int(u32(v))
		case unix.IFLA_TXQLEN:
			l.TxQLen = int(u32(v))
		case unix.IFLA_GSO_IPV4_MAX_SIZE:
			l.MaxSegmentIPv4 = int(u32(v))
		case unix.IFLA_LINK:
			l.PeerIndex = int(u32(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNetnsID = int(int32(u32(v)))
		case unix.IFLA_XDP:
			l.XDP = xdpOf(v)
		case unix.IFLA_MASTER:
			l.MasterIndex = int(u32(v))
		case unix.IFLA_IFALIAS:
			l.Alias = cstring(v)
		case unix.IFLA_OPERSTATE:
			if s := int(u8(v)); s < len(operStates) {
				l.OperState = operStates[s]
			}
		case unix.IFLA_AF_SPEC:
			l.NoRA = noRA(v)
		case unix.IFLA_LINKINFO:
			info = v
		}
	})
	if err == nil {
		err = l.parseInfo(info)
	}
	return l, err
}

// vxlanPort is IFLA_VXLAN_PORT of <linux/if_link.h>, in network byte order.
const vxlanPort = 15

// Attributes inside IFLA_AF_SPEC, <linux/if_link.h> and <linux/ipv6.h>.
const (
	inet6Conf    = 2 // IFLA_INET6_CONF, an array of 32-bit values
	confAcceptRA = 3 // DEVCONF_ACCEPT_RA
)

// noRA reads the setting from what the kernel says of the address families.
func noRA(b []byte) (off bool) {
	_ = walk(b, func(family uint16, v []byte) { // what cannot be read is not known to be off
		if family != unix.AF_INET6 {
			return
		}
		_ = walk(v, func(kind uint16, conf []byte) {
			if at := 4 * confAcceptRA; kind == inet6Conf && len(conf) >= at+4 {
				off = u32(conf[at:]) == 0
			}
		})
	})
	return off
}

func (l *Link) parseInfo(info []byte) error {
	var (
		data, slave []byte
		slaveKind   string
	)
	err := walk(info, func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_INFO_KIND:
			l.Kind = cstring(v)
		case unix.IFLA_INFO_DATA:
			data = v
		case unix.IFLA_INFO_SLAVE_KIND:
			slaveKind = cstring(v)
		case unix.IFLA_INFO_SLAVE_DATA:
			slave = v
		}
	})
	if err != nil {
		return err
	}
	if err := l.parseKind(data); err != nil {
		return err
	}
	if err := l.parseSub(data); err != nil {
		return err
	}
	if slaveKind != "bridge" {
		return nil
	}
	l.Port = new(Port)
	return walk(slave, func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_BRPORT_MODE:
			l.Port.Hairpin = u8(v) != 0
		case unix.IFLA_BRPORT_ISOLATED:
			l.Port.Isolated = u8(v) != 0
		}
	})
}

// parseKind reads what a device of the link's kind says of itself.
func (l *Link) parseKind(data []byte) (err error) {
	switch l.Kind {
	case "bridge":
		err = walk(data, func(kind uint16, v []byte) {
			if kind == unix.IFLA_BR_VLAN_FILTERING {
				l.VLANFiltering = u8(v) != 0
			}
		})
	case "vrf":
		err = walk(data, func(kind uint16, v []byte) {
			if kind == vrfTable {
				l.VRFTable = u32(v)
			}
		})
	case "vxlan":
		err = walk(data, func(kind uint16, v []byte) {
			if kind == vxlanPort && len(v) >= 2 {
				l.TunnelPort = binary.BigEndian.Uint16(v)
			}
		})
	case "tun":
		l.Tun, err = parseTun(data)
	}
	return err
}

// Attributes inside IFLA_XDP, <linux/if_link.h>.
const (
	xdpAttached = 2 // IFLA_XDP_ATTACHED
	xdpProgID   = 4 // IFLA_XDP_PROG_ID
)

// xdpModes is in the order of the kernel's XDP_ATTACHED_ values.
var xdpModes = [...]string{"", XDPNative, XDPGeneric, XDPOffload, XDPMulti}

func xdpOf(b []byte) (x XDP) {
	_ = walk(b, func(kind uint16, v []byte) { // what cannot be read is not there
		switch kind {
		case xdpAttached:
			if m := int(u8(v)); m < len(xdpModes) {
				x.Mode = xdpModes[m]
			}
		case xdpProgID:
			x.ID = u32(v)
		}
	})
	return x
}
