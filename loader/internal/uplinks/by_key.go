// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

const (
	// tries is how many numbers without a device end the search for new ones, where no device is known to be the newest.
	tries = 8
	// maxChecked bounds the addresses of pods' devices that one look asks for. The next look goes on.
	maxChecked = 16
)

// ErrNeedFull says that only a full look can tell.
var ErrNeedFull = errors.New("a full look at the node is needed")

// byKey is a look at what the last one has left and at the devices that came since then. It asks for each by its key, so that
// neither its messages nor their sizes grow with the devices of pods.
type byKey struct {
	*view

	roles Roles
	m     *Memory
	seen  map[netip.Addr]bool
}

// ReadByKey does what Read does, at a cost that does not grow with the pods of the node. addrs are the node's addresses that the map has. newest is a device that was just made, or 0;
// also has devices whose addresses are wanted. docs/known-gaps.md has what it does not find.
func ReadByKey(h Netlink, configured []string, s Roles, before *Memory, addrs map[netip.Addr]uint32, newest int, also []int) (*Snapshot, *Memory, error) {
	v, err := newView(h, configured)
	if err != nil {
		return nil, nil, err
	}
	if !v.byName() && !before.routes {
		return nil, nil, ErrNeedFull
	}
	v.kept = make(map[netip.Addr]uint32)
	k := &byKey{view: v, roles: s, seen: make(map[netip.Addr]bool), m: &Memory{newest: before.newest, routes: before.routes, checked: before.checked}}
	for _, d := range before.own {
		if err := k.own(d); err != nil {
			return nil, nil, err
		}
	}
	if err := k.come(newest); err != nil {
		return nil, nil, err
	}
	for _, l := range v.configured {
		also = append(also, l.Index)
	}
	for _, index := range also {
		if index <= 0 || k.m.has(index) {
			continue
		}
		if _, err := k.addrsOf(index); err != nil {
			return nil, nil, err
		}
	}
	if err := k.others(before, addrs); err != nil {
		return nil, nil, err
	}
	k.m.dropGone()
	v.order(k.m.has)
	n, err := v.snapshot(s)
	return n, k.m, err
}

// addrsOf adds the addresses of a device; none if there is no such device.
func (k *byKey) addrsOf(index int) ([]rtnl.Addr, error) {
	addrs, err := k.h.AddrsOf(index, rtnl.FamilyAll)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	addrs = FilterNodeAddrs(addrs)
	for _, a := range addrs {
		k.seen[a.Prefix.Addr()] = true
	}
	k.addrs = append(k.addrs, addrs...)
	return addrs, nil
}

// own looks at a device of the node again. Its routes are read once, and again when its addresses have become others: those to its
// subnets came and went with them.
func (k *byKey) own(d ownDevice) error {
	addrs, err := k.addrsOf(d.index)
	if err != nil {
		return err
	}
	has := addrScopeOf(addrs)
	changed := d.gone || d.addrScope != has || !d.routed && k.roles.Routed(d.index)
	d.gone, d.addrScope, d.routed = false, has, k.roles.Routed(d.index)
	if has == inSubnet && !changed {
		k.keep(d)
		return nil
	}
	l, err := linkOf(k.h, k.known, d.index)
	if errors.Is(err, rtnl.ErrNotFound) {
		k.m.add(ownDevice{index: d.index, gone: true})
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case changed:
		d.deviceRoutes, err = k.routesBy(d.index)
	case !d.nets:
		d.deviceRoutes, err = k.defaultBy(l)
	}
	if err != nil {
		return err
	}
	if k.roles.HostVeth(d.index) {
		return nil
	}
	k.addClient(l, k.roles.Routed, has, d.deviceRoutes)
	if ofPods(l, has, d.deviceRoutes) { // its other end has moved to a pod since
		return nil
	}
	k.keep(d)
	return nil
}

// keep notes a device of the node.
func (k *byKey) keep(d ownDevice) {
	if d.deviceRoutes != (deviceRoutes{}) {
		k.routes[d.index] = d.deviceRoutes
	}
	k.m.add(d)
}

// defaultBy asks whether a device leads everywhere. That is a lookup. Other networks behind it would take a dump: a full look finds
// them.
func (k *byKey) defaultBy(l rtnl.Link) (deviceRoutes, error) {
	if !l.Up || l.MasterIndex != 0 || k.byName() {
		return deviceRoutes{}, nil
	}
	for _, nowhere := range []netip.Addr{netip.AddrFrom4([4]byte{240, 0, 0, 1}), netip.AddrFrom16([16]byte{0: 0x3f, 1: 0xff, 15: 1})} {
		r, err := k.h.RouteTo(nowhere, l.Index)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return deviceRoutes{}, err
		}
		if r.Type == unix.RTN_UNICAST {
			return deviceRoutes{nets: true, far: true}, nil
		}
	}
	return deviceRoutes{}, nil
}

// routesBy reads the routes by one device of the node, once for each: the kernel goes through its tables for them.
func (k *byKey) routesBy(index int) (deviceRoutes, error) {
	if k.byName() {
		return deviceRoutes{}, nil
	}
	routes, err := egressRoutes(k.h, index)
	if err != nil {
		return deviceRoutes{}, err
	}
	k.addRoutes(routes)
	return k.routes[index], nil
}

// come looks at the devices that came since the last look. newest is the last of them, or 0: then their numbers are tried.
func (k *byKey) come(newest int) error {
	from := k.m.newest
	if newest == 0 {
		for index, missed := from+1, 0; missed < tries; index++ {
			if index-from > maxNew {
				return ErrNeedFull
			}
			missed++
			there, err := k.first(index)
			if err != nil {
				return err
			}
			if there {
				missed, k.m.newest = 0, index
			}
		}
		return nil
	}
	// The numbers of ADDs at the same time come in any order. One that is far off has been given in another network namespace, or the last one was.
	if max(newest-from, from-newest) > maxNew {
		return ErrNeedFull
	}
	k.m.newest = newest
	for index := from + 1; index <= newest; index++ {
		if _, err := k.first(index); err != nil {
			return err
		}
	}
	return nil
}

// first looks at a device for the first time. It reports whether there is one.
func (k *byKey) first(index int) (there bool, err error) {
	if k.m.has(index) || k.roles.HostVeth(index) { // the latter's ADD has told its addresses
		return true, nil
	}
	l, err := linkOf(k.h, k.known, index)
	if errors.Is(err, rtnl.ErrNotFound) {
		return false, nil
	}
	if err != nil || noTraffic(l) {
		return true, err
	}
	addrs, err := k.addrsOf(index)
	if err != nil {
		return true, err
	}
	d := ownDevice{index: index, addrScope: addrScopeOf(addrs), routed: k.roles.Routed(index)}
	if leadsToPod(l) && d.addrScope < inSubnet {
		d.deviceRoutes, err = k.defaultBy(l)
	} else {
		d.deviceRoutes, err = k.routesBy(index)
	}
	if err != nil {
		return true, err
	}
	k.addClient(l, k.roles.Routed, d.addrScope, d.deviceRoutes)
	if !ofPods(l, d.addrScope, d.deviceRoutes) {
		k.keep(d)
	}
	return true, nil
}

// others asks for the addresses that the map has and that were not seen on the node's own devices: those of pods' gateways. Many
// devices have one address, and it stays until the last of them goes.
func (k *byKey) others(before *Memory, addrs map[netip.Addr]uint32) error {
	var left []netip.Addr
	for a := range addrs {
		if !k.seen[a] {
			left = append(left, a)
		}
	}
	slices.SortFunc(left, netip.Addr.Compare)
	at, _ := slices.BinarySearchFunc(left, before.checked, func(a, last netip.Addr) int { return cmp.Or(a.Compare(last), -1) })
	left = slices.Concat(left[at:], left[:at])
	for i, a := range left {
		if k.seen[a] { // a device of one before it has it too
			continue
		}
		if i >= maxChecked {
			k.kept[a] = addrs[a]
			continue
		}
		k.m.checked = a
		if err := k.other(a, int(addrs[a])); err != nil {
			return err
		}
	}
	return nil
}

// other looks for a on the device that had it, then on the one by which the kernel delivers it.
func (k *byKey) other(a netip.Addr, had int) error {
	if !k.m.has(had) {
		if _, err := k.addrsOf(had); err != nil || k.seen[a] {
			return err
		}
	}
	r, err := k.h.RouteTo(a, 0)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil || r.Type != unix.RTN_LOCAL || r.LinkIndex <= 0 {
		return err
	}
	_, err = k.addrsOf(r.LinkIndex)
	return err
}
