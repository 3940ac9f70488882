// SPDX-License-Identifier: Apache-2.0

package node

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

// errWhole says that only a full look can tell.
var errWhole = errors.New("a full look at the node is needed")

// keyLook is a look at what the last one has left and at the devices that came since then. It asks for each by its key, so that
// neither its messages nor their sizes grow with the devices of pods.
type keyLook struct {
	*view

	sides sides
	m     *memory
	seen  map[netip.Addr]bool
}

// lookByKey does what fullLook does. addrs are the node's addresses that the map has. newest is a device that was just made, or 0;
// also has devices whose addresses are wanted. docs/known-gaps.md has what it does not find.
func lookByKey(h links, configured []string, s sides, before *memory, addrs map[netip.Addr]uint32, newest int, also []int) (*view, *memory, error) {
	v, err := newView(h, configured)
	if err != nil {
		return nil, nil, err
	}
	if !v.byName() && !before.routes {
		return nil, nil, errWhole
	}
	v.kept = make(map[netip.Addr]uint32)
	k := &keyLook{view: v, sides: s, seen: make(map[netip.Addr]bool), m: &memory{newest: before.newest, routes: before.routes, checked: before.checked}}
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
	return v, k.m, nil
}

// addrsOf adds the addresses of a device; none if there is no such device.
func (k *keyLook) addrsOf(index int) ([]rtnl.Addr, error) {
	addrs, err := k.h.AddrsOf(index, rtnl.FamilyAll)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	addrs = OnlyTheNodes(addrs)
	for _, a := range addrs {
		k.seen[a.Prefix.Addr()] = true
	}
	k.addrs = append(k.addrs, addrs...)
	return addrs, nil
}

// own looks at a device of the node again. Its routes are read once, and again when its addresses have become others: those to its
// subnets came and went with them.
func (k *keyLook) own(d ownDevice) error {
	addrs, err := k.addrsOf(d.index)
	if err != nil {
		return err
	}
	has := addressingOf(addrs)
	changed := d.gone || d.addressing != has || !d.routed && k.sides.routed(d.index)
	d.gone, d.addressing, d.routed = false, has, k.sides.routed(d.index)
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
		d.wayOut, err = k.routesBy(d.index)
	case !d.nets:
		d.wayOut, err = k.defaultBy(l)
	}
	if err != nil {
		return err
	}
	if k.sides.hostVeth(d.index) {
		return nil
	}
	k.addClient(l, k.sides.routed, has, d.wayOut)
	if ofPods(l, has, d.wayOut) { // its other end has moved to a pod since
		return nil
	}
	k.keep(d)
	return nil
}

// keep notes a device of the node.
func (k *keyLook) keep(d ownDevice) {
	if d.wayOut != (wayOut{}) {
		k.ways[d.index] = d.wayOut
	}
	k.m.add(d)
}

// defaultBy asks whether a device leads everywhere. That is a lookup. Other networks behind it would take a dump: a full look finds
// them.
func (k *keyLook) defaultBy(l rtnl.Link) (wayOut, error) {
	if !l.Up || l.MasterIndex != 0 || k.byName() {
		return wayOut{}, nil
	}
	for _, nowhere := range []netip.Addr{netip.AddrFrom4([4]byte{240, 0, 0, 1}), netip.AddrFrom16([16]byte{0: 0x3f, 1: 0xff, 15: 1})} {
		r, err := k.h.RouteTo(nowhere, l.Index)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return wayOut{}, err
		}
		if r.Type == unix.RTN_UNICAST {
			return wayOut{nets: true, far: true}, nil
		}
	}
	return wayOut{}, nil
}

// routesBy reads the routes by one device of the node, once for each: the kernel goes through its tables for them.
func (k *keyLook) routesBy(index int) (wayOut, error) {
	if k.byName() {
		return wayOut{}, nil
	}
	routes, err := waysOut(k.h, index)
	if err != nil {
		return wayOut{}, err
	}
	k.addRoutes(routes)
	return k.ways[index], nil
}

// come looks at the devices that came since the last look. newest is the last of them, or 0: then their numbers are tried.
func (k *keyLook) come(newest int) error {
	from := k.m.newest
	if newest == 0 {
		for index, missed := from+1, 0; missed < tries; index++ {
			if index-from > maxNew {
				return errWhole
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
		return errWhole
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
func (k *keyLook) first(index int) (there bool, err error) {
	if k.m.has(index) || k.sides.hostVeth(index) { // the latter's ADD has told its addresses
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
	d := ownDevice{index: index, addressing: addressingOf(addrs), routed: k.sides.routed(index)}
	if leadsToPod(l) && d.addressing < inSubnet {
		d.wayOut, err = k.defaultBy(l)
	} else {
		d.wayOut, err = k.routesBy(index)
	}
	if err != nil {
		return true, err
	}
	k.addClient(l, k.sides.routed, d.addressing, d.wayOut)
	if !ofPods(l, d.addressing, d.wayOut) {
		k.keep(d)
	}
	return true, nil
}

// others asks for the addresses that the map has and that were not seen on the node's own devices: those of pods' gateways. Many
// devices have one address, and it stays until the last of them goes.
func (k *keyLook) others(before *memory, addrs map[netip.Addr]uint32) error {
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
func (k *keyLook) other(a netip.Addr, had int) error {
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
