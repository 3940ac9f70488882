// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Netlink is what a look asks of the kernel.
type Netlink interface {
	LinkByIndex(index int) (rtnl.Link, error)
	LinkByName(name string) (rtnl.Link, error)
	Links() ([]rtnl.Link, error)
	Addrs(family int) ([]rtnl.Addr, error)
	AddrsOf(index, family int) ([]rtnl.Addr, error)
	Rules(family int) ([]rtnl.Rule, error)
	RoutesWhere(f rtnl.RouteFilter) ([]rtnl.Route, error)
	RouteTo(dst netip.Addr, index int) (rtnl.Route, error)
}

var _ Netlink = (*rtnl.Handle)(nil)

// Roles tells the devices on the pods' side.
type Roles struct {
	HostVeth func(index int) bool // of a pod: it has counters
	Routed   func(index int) bool // packets of pods are routed from it: it has a mark
}

func (s Roles) podSide(index int) bool { return s.Routed(index) || s.HostVeth(index) }

// view is what a look has read of the node.
type view struct {
	h          Netlink
	known      map[int]rtnl.Link
	configured []rtnl.Link // uplinks
	missing    []string
	addrs      []rtnl.Addr           // the node's own devices first, each part in the order of devices
	routes     map[int]deviceRoutes  // of devices that have routes
	own        func(index int) bool  // the node's own devices
	kept       map[netip.Addr]uint32 // addresses of pods' devices that were not looked up this time
	clients    []rtnl.Link           // devices that were looked at and that clients on this node may be behind
}

// deviceRoutes is what the routes by a device say of it.
type deviceRoutes struct {
	nets bool // one leads to more than one host
	far  bool // one leads to a gateway, or everywhere
}

// addrScope is what the addresses of a device say of it.
type addrScope int

const (
	noAddress addrScope = iota
	singleAddress
	inSubnet // one address is for more than one host
)

func (x addrScope) with(a rtnl.Addr) addrScope {
	if a.Prefix.IsSingleIP() {
		return max(x, singleAddress)
	}
	return inSubnet
}

func addrScopeOf(addrs []rtnl.Addr) (x addrScope) {
	for _, a := range addrs {
		x = x.with(a)
	}
	return x
}

func newView(h Netlink, configured []string) (*view, error) {
	v := &view{h: h, known: make(map[int]rtnl.Link), routes: make(map[int]deviceRoutes)}
	for _, name := range configured {
		l, err := h.LinkByName(name)
		if errors.Is(err, rtnl.ErrNotFound) {
			v.missing = append(v.missing, name)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("uplink %q: %w", name, err)
		}
		v.known[l.Index] = l
		v.configured = append(v.configured, l)
	}
	return v, nil
}

// byName says that the configuration names the uplinks: routes play no part.
func (v *view) byName() bool { return len(v.configured)+len(v.missing) > 0 }

// order puts the addresses of the node's own devices first: of two devices with one address, one of these has it. The kernel lists
// devices in an order that depends on its version.
func (v *view) order(own func(index int) bool) {
	v.own = own
	slices.SortStableFunc(v.addrs, func(a, b rtnl.Addr) int {
		if x, y := own(a.LinkIndex), own(b.LinkIndex); x != y {
			if x {
				return -1
			}
			return 1
		}
		return a.LinkIndex - b.LinkIndex
	})
}

// addRoutes notes the devices that routes lead by.
func (v *view) addRoutes(routes []rtnl.Route) {
	for _, r := range routes {
		if r.LinkIndex <= 0 {
			continue
		}
		w := v.routes[r.LinkIndex]
		w.nets = w.nets || r.Type == unix.RTN_UNICAST && !r.Dst.IsSingleIP() && !linkScope(r.Dst.Addr())
		w.far = w.far || r.Gateway.IsValid() || r.Dst.Bits() == 0
		if w != (deviceRoutes{}) {
			v.routes[r.LinkIndex] = w
		}
	}
}

// Read reads every device, address and route of the node. configured are the names of uplinks, empty where the routes tell them. before is
// what the last look has left, or nil. newest is a device that was just made, or 0. The Memory is for the next look.
func Read(h Netlink, configured []string, s Roles, before *Memory, newest int) (*Snapshot, *Memory, error) {
	all, err := h.Links() // first: what comes after it is newer than newest
	if err != nil {
		return nil, nil, err
	}
	v, err := newView(h, configured)
	if err != nil {
		return nil, nil, err
	}
	if v.addrs, err = h.Addrs(rtnl.FamilyAll); err != nil {
		return nil, nil, err
	}
	v.addrs = FilterNodeAddrs(v.addrs)
	if !v.byName() {
		routes, err := egressRoutes(h, 0)
		if err != nil {
			return nil, nil, err
		}
		v.addRoutes(routes)
	}
	byDevice := make(map[int]addrScope)
	for _, a := range v.addrs {
		byDevice[a.LinkIndex] = byDevice[a.LinkIndex].with(a)
	}
	m := &Memory{routes: !v.byName()}
	for _, l := range all {
		v.known[l.Index] = l
	}
	for _, l := range all {
		if s.HostVeth(l.Index) {
			continue
		}
		v.addClient(l, s.Routed, byDevice[l.Index], v.routes[l.Index])
		if !ofPods(l, byDevice[l.Index], v.routes[l.Index]) {
			m.own = append(m.own, ownDevice{index: l.Index, deviceRoutes: v.routes[l.Index], addrScope: byDevice[l.Index], routed: s.Routed(l.Index)})
		}
	}
	slices.SortFunc(m.own, func(a, b ownDevice) int { return a.index - b.index })
	m.newest = newest
	if newest == 0 {
		m.newest = newestOf(all)
	}
	if before != nil {
		m.keepGone(before.own)
		if newest == 0 {
			m.newest = max(m.newest, before.newest)
		}
	}
	v.order(m.has)
	n, err := v.snapshot(s)
	return n, m, err
}

// newestOf returns the last device of the row that the kernel's counter has made. One far away came with its number from another
// network namespace: what the counter makes next has a lower one.
func newestOf(all []rtnl.Link) (newest int) {
	byIndex := make(map[int]bool, len(all))
	for _, l := range all {
		byIndex[l.Index] = true
	}
	for _, index := range slices.Sorted(maps.Keys(byIndex)) {
		if index-newest > maxNew {
			break
		}
		newest = index
	}
	return newest
}

// ofPods says which devices need no further looks. Those of services never count (noTraffic). A veth that leads to another
// namespace, and has neither a subnet nor a route to one, is the host veth of a pod of others.
func ofPods(l rtnl.Link, has addrScope, w deviceRoutes) bool {
	if noTraffic(l) {
		return true
	}
	return leadsToPod(l) && has < inSubnet && !w.nets
}

func leadsToPod(l rtnl.Link) bool {
	return l.Paired() && l.PeerNetnsID >= 0
}
