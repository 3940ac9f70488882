// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Operational states as Link.OperState has them (RFC 2863).
const (
	OperUnknown = "unknown"
	OperDown    = "down"
	OperUp      = "up"
)

// extSkipStats is RTEXT_FILTER_SKIP_STATS of <linux/rtnetlink.h>: statistics are most of a reply and nobody here reads them.
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
	MTU         int
	TxQLen      int
	Up          bool // administratively up
	Promisc     bool // asked for by somebody, not by the device's being a bridge port
	AllMulti    bool
	Loopback    bool
	Ethernet    bool

	// VLANFiltering is a bridge's setting.
	VLANFiltering bool
	// Port holds the settings of a bridge port, nil for anything else.
	Port *Port
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

func (h *Handle) getLink(index int, name string) (Link, error) {
	req := h.request(unix.RTM_GETLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(attr32(unix.IFLA_EXT_MASK, extSkipStats))
	if name != "" {
		if len(name) >= unix.IFNAMSIZ { // the kernel would say EINVAL; such a link cannot exist
			return Link{}, ErrNotFound
		}
		req.AddData(attrString(unix.IFLA_IFNAME, name))
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
	}
	var info []byte
	err := walk(m[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = cstring(v)
		case unix.IFLA_ADDRESS:
			l.MAC = macOf(v)
		case unix.IFLA_MTU:
			l.MTU = int(u32(v))
		case unix.IFLA_TXQLEN:
			l.TxQLen = int(u32(v))
		case unix.IFLA_LINK:
			l.PeerIndex = int(u32(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNetnsID = int(int32(u32(v)))
		case unix.IFLA_MASTER:
			l.MasterIndex = int(u32(v))
		case unix.IFLA_IFALIAS:
			l.Alias = cstring(v)
		case unix.IFLA_OPERSTATE:
			if s := int(u8(v)); s < len(operStates) {
				l.OperState = operStates[s]
			}
		case unix.IFLA_LINKINFO:
			info = v
		}
	})
	if err == nil {
		err = l.parseInfo(info)
	}
	return l, err
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
	if l.Kind == "bridge" {
		if err := walk(data, func(kind uint16, v []byte) {
			if kind == unix.IFLA_BR_VLAN_FILTERING {
				l.VLANFiltering = u8(v) != 0
			}
		}); err != nil {
			return err
		}
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
