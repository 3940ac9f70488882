// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of <linux/if_link.h>.
const (
	inet6AddrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenModeNone  = 1 // IN6_ADDR_GEN_MODE_NONE

	inetConf  = 1  // IFLA_INET_CONF
	arpNotify = 22 // IPV4_DEVCONF_ARP_NOTIFY, of <linux/ip.h>
)

// vethInfoPeer is VETH_INFO_PEER of <linux/veth.h>.
const vethInfoPeer = 1

// Kinds of device pairs, and of the queue for what arrives at a device.
const (
	KindVeth   = "veth"
	KindNetkit = "netkit" // Linux 6.7
	KindIFB    = "ifb"
)

// Paired reports whether the link is one end of a pair that connects a pod. PeerIndex is the other end.
func (l Link) Paired() bool { return l.Kind == KindVeth || l.Kind == KindNetkit }

// VethSpec describes a device pair. Both ends get MTU. Only HostName and PeerName are required.
type VethSpec struct {
	// Netkit makes a pair of netkit devices in L2 mode instead of veths. The host veth is the primary one: programs of both ends are
	// attached to it. Without a program each end passes what it gets. ErrNotSupported: the kernel has no netkit, or one that
	// takes no hardware addresses (before Linux 6.8).
	Netkit bool

	HostName string
	HostMAC  net.HardwareAddr // nil: the kernel chooses
	Master   int              // index of the bridge that the host end joins; 0 for none
	HostUp   bool

	PeerName  string
	PeerMAC   net.HardwareAddr // nil: the kernel chooses
	PeerNS    int              // descriptor of the peer's namespace; <= 0: the handle's own
	PeerIndex int              // wanted interface index of the peer; 0: the kernel chooses
	MTU       int              // 0: kernel default
}

// AddVeth makes the pair with one RTM_NEWLINK: the host end in the handle's namespace, the peer born in its own, so that no
// device is ever moved or renamed (both cost an RCU grace period). The error wraps ErrExist when one of the names is taken;
// then nothing was made.
func (h *Handle) AddVeth(s VethSpec) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	if s.HostUp {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	req.AddData(msg)
	for _, a := range endAttrs(s.HostName, s.HostMAC, s.MTU) {
		req.AddData(a)
	}
	if s.Master > 0 {
		req.AddData(attr32(unix.IFLA_MASTER, uint32(s.Master)))
	}
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(s.kind()))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	peerAttr := vethInfoPeer
	if s.Netkit {
		peerAttr = unix.IFLA_NETKIT_PEER_INFO
		data.AddRtAttr(unix.IFLA_NETKIT_MODE, vnl.Uint32Attr(unix.NETKIT_L2))
		for _, policy := range []int{unix.IFLA_NETKIT_POLICY, unix.IFLA_NETKIT_PEER_POLICY} {
			data.AddRtAttr(policy, vnl.Uint32Attr(unix.NETKIT_PASS))
		}
	}
	peer := data.AddRtAttr(peerAttr, nil)
	pmsg := vnl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	pmsg.Index = int32(s.PeerIndex)
	for _, a := range endAttrs(s.PeerName, s.PeerMAC, s.MTU) {
		peer.AddChild(a)
	}
	if s.PeerNS > 0 {
		peer.AddRtAttr(unix.IFLA_NET_NS_FD, vnl.Uint32Attr(uint32(s.PeerNS)))
	}
	req.AddData(info)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add %s %q with peer %q: %w", s.kind(), s.HostName, s.PeerName, err)
	}
	return nil
}

func (s VethSpec) kind() string {
	if s.Netkit {
		return KindNetkit
	}
	return KindVeth
}

func endAttrs(name string, mac net.HardwareAddr, mtu int) []*vnl.RtAttr {
	as := []*vnl.RtAttr{attrString(unix.IFLA_IFNAME, name)}
	if mtu > 0 {
		as = append(as, attr32(unix.IFLA_MTU, uint32(mtu)))
	}
	if mac != nil {
		as = append(as, attr(unix.IFLA_ADDRESS, mac))
	}
	return as
}

// BridgeSpec describes a bridge. Only Name is required.
type BridgeSpec struct {
	Name          string
	MTU           int              // 0: kernel default
	MAC           net.HardwareAddr // nil: the kernel chooses and follows the ports
	VLANFiltering bool             // needs CONFIG_BRIDGE_VLAN_FILTERING, else ErrNotSupported
	Up            bool
}

// AddBridge makes a bridge. The error wraps ErrExist when the name is taken, by whatever kind of link.
func (h *Handle) AddBridge(s BridgeSpec) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	if s.Up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	req.AddData(msg)
	for _, a := range endAttrs(s.Name, s.MAC, s.MTU) {
		req.AddData(a)
	}
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("bridge"))
	if s.VLANFiltering {
		info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(unix.IFLA_BR_VLAN_FILTERING, []byte{1})
	}
	req.AddData(info)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add bridge %q: %w", s.Name, err)
	}
	return nil
}

// BigSegment is the size in bytes of the largest segment that this project sets for BIG TCP: what Cilium sets too. Larger ones save
// little more, and the kernel collects them in more memory.
const BigSegment = 192 << 10

// LinkChange is a set of settings; nil fields stay as they are. All that is set goes in one message, which the kernel applies
// in the order MAC, MTU, name-independent flags, so it is not a transaction: after an error some may have been applied.
type LinkChange struct {
	Up       *bool
	Promisc  *bool
	AllMulti *bool
	MAC      net.HardwareAddr
	MTU      *int
	TxQLen   *int
	Alias    *string
	Name     *string // needs the link down on kernels before 6.2
	Master   *int    // 0 takes the link out of its bridge
	// MaxSegmentIPv4 is the size in bytes of the largest segment of IPv4 that the link takes from TCP and makes of what it receives
	// (GSO and GRO). More than 65,536 is BIG TCP, since Linux 6.3. Earlier kernels ignore it. EINVAL: the device takes no such size.
	MaxSegmentIPv4 *int
	// NoLinkLocal keeps the kernel from giving the link an IPv6 link-local
	// address, from the next time that it gets a carrier. It is an error where
	// IPv6 is off.
	NoLinkLocal bool
	// ARPNotify has the link tell its neighbours of its addresses when it is next set up (arp_notify): what the file in /proc/sys does, whose
	// path takes the kernel longer with each network namespace.
	ARPNotify bool
	// NetNS is the descriptor of a network namespace to move the link to; nil
	// leaves it where it is. The move comes first: it sets the link down and
	// takes its addresses and routes away, the rest applies in the namespace it
	// went to. Name with a %d (as in "dev%d") takes a free number there.
	// A Name that is taken there fails with ErrExist, and the link may have been
	// moved, but under the name it had.
	NetNS *int
}

// SetLink applies c to the link with that index.
func (h *Handle) SetLink(index int, c LinkChange) error {
	req := h.request(unix.RTM_NEWLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	setFlag(msg, unix.IFF_UP, c.Up)
	setFlag(msg, unix.IFF_PROMISC, c.Promisc)
	setFlag(msg, unix.IFF_ALLMULTI, c.AllMulti)
	req.AddData(msg)
	if c.MAC != nil {
		req.AddData(attr(unix.IFLA_ADDRESS, c.MAC))
	}
	if c.MTU != nil {
		req.AddData(attr32(unix.IFLA_MTU, uint32(*c.MTU)))
	}
	if c.TxQLen != nil {
		req.AddData(attr32(unix.IFLA_TXQLEN, uint32(*c.TxQLen)))
	}
	if c.MaxSegmentIPv4 != nil {
		req.AddData(attr32(unix.IFLA_GSO_IPV4_MAX_SIZE, uint32(*c.MaxSegmentIPv4)))
		req.AddData(attr32(unix.IFLA_GRO_IPV4_MAX_SIZE, uint32(*c.MaxSegmentIPv4)))
	}
	if c.Alias != nil {
		req.AddData(attr(unix.IFLA_IFALIAS, []byte(*c.Alias)))
	}
	if c.Name != nil {
		req.AddData(attrString(unix.IFLA_IFNAME, *c.Name))
	}
	if c.Master != nil {
		req.AddData(attr32(unix.IFLA_MASTER, uint32(*c.Master)))
	}
	if c.NetNS != nil {
		req.AddData(attr32(unix.IFLA_NET_NS_FD, uint32(*c.NetNS)))
	}
	if c.NoLinkLocal || c.ARPNotify {
		spec := attr(unix.IFLA_AF_SPEC, nil)
		if c.NoLinkLocal {
			spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(inet6AddrGenMode, []byte{addrGenModeNone})
		}
		if c.ARPNotify {
			spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(arpNotify, vnl.Uint32Attr(1))
		}
		req.AddData(spec)
	}
	if err := h.do(req); err != nil {
		return fmt.Errorf("change link index %d: %w", index, err)
	}
	return nil
}

func setFlag(msg *vnl.IfInfomsg, flag uint32, on *bool) {
	if on == nil {
		return
	}
	msg.Change |= flag
	if *on {
		msg.Flags |= flag
	}
}

// SetUp sets the link administratively up.
func (h *Handle) SetUp(index int) error { return h.SetLink(index, LinkChange{Up: ptr(true)}) }

// SetDown sets the link administratively down.
func (h *Handle) SetDown(index int) error { return h.SetLink(index, LinkChange{Up: ptr(false)}) }

// SetName renames the link.
func (h *Handle) SetName(index int, name string) error {
	return h.SetLink(index, LinkChange{Name: &name})
}

// SetMAC sets the hardware address. On a bridge this also stops the address from following the ports.
func (h *Handle) SetMAC(index int, mac net.HardwareAddr) error {
	return h.SetLink(index, LinkChange{MAC: mac})
}

// SetMTU sets the MTU in bytes.
func (h *Handle) SetMTU(index, mtu int) error { return h.SetLink(index, LinkChange{MTU: &mtu}) }

// SetPromisc turns promiscuous mode on or off.
func (h *Handle) SetPromisc(index int, on bool) error {
	return h.SetLink(index, LinkChange{Promisc: &on})
}

// SetAllMulti turns reception of all multicast on or off.
func (h *Handle) SetAllMulti(index int, on bool) error {
	return h.SetLink(index, LinkChange{AllMulti: &on})
}

// SetTxQLen sets the transmit queue length in packets.
func (h *Handle) SetTxQLen(index, n int) error { return h.SetLink(index, LinkChange{TxQLen: &n}) }

// SetMaster makes the link a port of the bridge with index master, or of none for 0.
func (h *Handle) SetMaster(index, master int) error {
	return h.SetLink(index, LinkChange{Master: &master})
}

// DelLink deletes the link. The error wraps ErrNotFound when it is gone already.
func (h *Handle) DelLink(index int) error {
	if index <= 0 { // index 0 with no name would be an error of its own kind
		return fmt.Errorf("delete link index %d: %w", index, ErrNotFound)
	}
	req := h.request(unix.RTM_DELLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	if err := h.do(req); err != nil {
		return fmt.Errorf("delete link index %d: %w", index, err)
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
