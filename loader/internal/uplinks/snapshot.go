// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"maps"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Snapshot is what the datapath must know of the node's own network.
type Snapshot struct {
	Addrs   map[netip.Addr]uint32 // that stand for the node, with their device
	Uplinks map[int]endpoint.Sources
	Skipped []SkippedDevice
	Missing []string // configured uplinks that do not exist
	// Spare are uplinks that lead to their own subnets only: no gateway is behind them, and the configuration does not name them.
	Spare       map[int]bool
	Clients     []rtnl.Link       // devices, no uplinks, that clients of hostPorts on this node may be behind
	TunnelPorts map[uint32]uint16 // UDP ports of VXLAN devices, of those that were looked at
}

// SkippedDevice is a device that would be an uplink but is not handled.
type SkippedDevice struct {
	Ifindex int    `json:"ifindex"`
	Name    string `json:"name"`
	Why     string `json:"why"`
}

// snapshot decides what counts of what a look has read.
func (v *view) snapshot(roles Roles) (*Snapshot, error) {
	n := &Snapshot{
		Addrs: make(map[netip.Addr]uint32), Uplinks: make(map[int]endpoint.Sources), Missing: v.missing, Spare: make(map[int]bool),
		TunnelPorts: make(map[uint32]uint16),
	}
	maps.Copy(n.Addrs, v.kept)
	if err := n.hostAddrs(v); err != nil {
		return nil, err
	}
	for index := range n.candidates(v) {
		if roles.podSide(index) {
			continue
		}
		l, err := linkOf(v.h, v.known, index)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if ok, why := canBeUplink(l); !ok {
			if why != "" {
				n.Skipped = append(n.Skipped, SkippedDevice{Ifindex: index, Name: l.Name, Why: why})
			}
			continue
		}
		src := Sources(v.addrs, index)
		src.Bare = l.Bare
		src.NoRedirect = l.PPP && !bpfsys.KernelAtLeast(6, 6) // dev_is_mac_header_xmit() knows PPP since then
		if src.AgainMax, err = againMax(v, l); err != nil {
			return nil, err
		}
		n.Uplinks[index] = src
		n.Spare[index] = !v.byName() && !v.routes[index].far
	}
	n.borrowSources(v, roles)
	for _, l := range v.clients {
		if _, is := n.Uplinks[l.Index]; !is {
			n.Clients = append(n.Clients, l)
		}
	}
	for index, l := range v.known {
		if l.TunnelPort != 0 {
			n.TunnelPorts[uint32(index)] = l.TunnelPort
		}
	}
	return n, nil
}

// egressRoutes returns the routes of the main table and of those that rules lead to: all, or those by the device index.
func egressRoutes(h Netlink, index int) ([]rtnl.Route, error) {
	rules, err := h.Rules(rtnl.FamilyAll)
	if err != nil && !errors.Is(err, rtnl.ErrNotSupported) {
		return nil, err
	}
	tables := []rtnl.RouteFilter{
		{Family: rtnl.FamilyV4, Table: rtnl.TableMain, LinkIndex: index}, {Family: rtnl.FamilyV6, Table: rtnl.TableMain, LinkIndex: index},
	}
	for _, r := range rules {
		t := rtnl.RouteFilter{Family: r.Family, Table: r.Table, LinkIndex: index}
		if t.Table != 0 && t.Table != rtnl.TableLocal && !slices.Contains(tables, t) {
			tables = append(tables, t)
		}
	}
	var all []rtnl.Route
	for _, t := range tables {
		routes, err := h.RoutesWhere(t)
		if err != nil {
			return nil, err
		}
		all = append(all, routes...)
	}
	return all, nil
}

// ethernetHeader is what a frame has besides the packet that the MTU is for.
const ethernetHeader = 14

// isNonNodeAddr reports whether a never stands for the node to the outside.
func isNonNodeAddr(a netip.Addr) bool { return a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast() }

// FilterNodeAddrs returns the addresses that may stand for the node. It reuses the memory of addrs.
func FilterNodeAddrs(addrs []rtnl.Addr) []rtnl.Addr {
	return slices.DeleteFunc(addrs, func(a rtnl.Addr) bool { return isNonNodeAddr(a.Prefix.Addr()) })
}

// noTraffic are the kinds of devices that no packet is routed to. Some hold addresses of services, not of the node: what kube-proxy's
// IPVS mode and node-local caches use (CVE-2019-9946). An IFB is a queue, and a pod with a limit may have one of its own.
func noTraffic(l rtnl.Link) bool {
	return l.Kind == "dummy" || l.Kind == "ipvs" || l.Kind == rtnl.KindIFB
}

// isPodLikeKind reports whether the pods and virtual machines of others may hang on a device of this kind.
func isPodLikeKind(l rtnl.Link) bool {
	switch l.Kind {
	case rtnl.KindVeth, rtnl.KindNetkit, "bridge":
		return true
	case "tun":
		return l.Ethernet
	}
	return false
}

func linkOf(h Netlink, known map[int]rtnl.Link, index int) (rtnl.Link, error) {
	if l, ok := known[index]; ok {
		return l, nil
	}
	l, err := h.LinkByIndex(index)
	if err != nil {
		return l, err
	}
	known[index] = l
	return l, nil
}

func (n *Snapshot) hostAddrs(v *view) error {
	for _, a := range v.addrs {
		if _, ok := n.Addrs[a.Prefix.Addr()]; ok {
			continue // pods on point-to-point links have one gateway address, each on a device of its own
		}
		l, err := linkOf(v.h, v.known, a.LinkIndex)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue // the device went, and its addresses with it
		}
		if err != nil {
			return err
		}
		if !noTraffic(l) {
			n.Addrs[a.Prefix.Addr()] = uint32(a.LinkIndex)
		}
	}
	return nil
}

// has reports whether a stands for the node, and is not an address that another device has had before.
func (n *Snapshot) has(a rtnl.Addr) bool { return n.Addrs[a.Prefix.Addr()] == uint32(a.LinkIndex) }

// candidates returns the devices that may be uplinks: the configured ones, else those with an address or a route that is for
// more than one host. The latter leaves out the host veths of pods of others, which have host routes only. A single address
// is enough for a device that cannot be one of those.
func (n *Snapshot) candidates(v *view) map[int]bool {
	set := make(map[int]bool)
	for _, l := range v.configured {
		set[l.Index] = true
	}
	if v.byName() {
		return set
	}
	for _, a := range v.addrs {
		if !a.Prefix.IsSingleIP() || n.has(a) && !isPodLikeKind(v.known[a.LinkIndex]) {
			set[a.LinkIndex] = true
		}
	}
	for index, w := range v.routes {
		if w.nets {
			set[index] = true
		}
	}
	return set
}

func linkScope(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() || a.IsMulticast() }

// canBeUplink says whether l can carry traffic out of the node. The reason is set where it can but we do not handle it yet.
func canBeUplink(l rtnl.Link) (bool, string) {
	switch {
	case l.Loopback || noTraffic(l):
		return false, ""
	case !l.Ethernet && !l.Bare:
		return false, "neither Ethernet nor IP without a header"
	}
	return true, ""
}

// maxStacked bounds the devices that are looked for below a device, as the kernel does (MAX_NEST_DEV).
const maxStacked = 8

// againMax says which frames of an uplink go through its ingress once more: on a bridge, and on what is stacked on one (VLAN, macvlan,
// ipvlan), netfilter has seen a packet before the uplink's program translates it. What is below a device in another network namespace
// cannot be seen from here, so it counts as one.
func againMax(v *view, l rtnl.Link) (uint16, error) {
	longest := uint16(min(l.MTU+ethernetHeader, math.MaxUint16))
	for range maxStacked {
		switch {
		case l.Kind == "bridge":
			return longest, nil
		case l.Bare || l.Paired() || l.PeerIndex <= 0 || l.PeerIndex == l.Index:
			return 0, nil
		case l.PeerNetnsID >= 0:
			return longest, nil
		}
		lower, err := linkOf(v.h, v.known, l.PeerIndex)
		if errors.Is(err, rtnl.ErrNotFound) { // it went with the device on it
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		l = lower
	}
	return 0, nil
}

// isFirstChoice says of an address that it is neither secondary, temporary, on its way out nor unproven.
func isFirstChoice(a rtnl.Addr) bool {
	const second = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	return a.Scope == rtnl.ScopeUniverse && a.Flags&second == 0
}

// Sources picks the addresses an uplink masquerades with: per family the first of the best.
func Sources(addrs []rtnl.Addr, index int) endpoint.Sources {
	var s endpoint.Sources
	var best4, best6 int
	for _, a := range addrs {
		if a.LinkIndex != index {
			continue
		}
		if ip, rank := a.Prefix.Addr(), sourceRank(a); ip.Is4() {
			if rank > best4 {
				s.V4, best4 = ip, rank
			}
		} else if rank > best6 {
			s.V6, best6 = ip, rank
		}
	}
	return s
}

// sourceRank says how good an address is for every destination. One source serves all where the kernel does not choose by
// destination (RFC 6724): from a unique local address of IPv6 there is no way back from the internet, and those beside a global
// one are listed in the order in which they came.
func sourceRank(a rtnl.Addr) int {
	switch ip := a.Prefix.Addr(); {
	case !isFirstChoice(a):
		return 1
	case ip.Is6() && ip.IsPrivate():
		return 2
	}
	return 3
}

// borrowSources gives uplinks without an address of their own that of the first device that has one, as netfilter does
// (inet_select_addr): those of a routed fabric have link-local ones only, and the node's address is on lo. The gateway address of a
// pod, on its host veth, leads nowhere.
func (n *Snapshot) borrowSources(v *view, roles Roles) {
	byDevice := slices.SortedStableFunc(slices.Values(v.addrs), func(a, b rtnl.Addr) int { return a.LinkIndex - b.LinkIndex })
	for index, src := range n.Uplinks {
		for _, a := range byDevice {
			ip := a.Prefix.Addr()
			if src.V4.IsValid() && src.V6.IsValid() {
				break
			}
			if !isFirstChoice(a) || !n.has(a) || !v.own(a.LinkIndex) || roles.podSide(a.LinkIndex) {
				continue
			}
			if ip.Is4() && !src.V4.IsValid() {
				src.V4 = ip
			} else if ip.Is6() && !src.V6.IsValid() {
				src.V6 = ip
			}
		}
		n.Uplinks[index] = src
	}
}
