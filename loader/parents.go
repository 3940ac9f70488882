// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func (d *Datapath) parentsMap() (podns.Parents, error) {
	m, err := d.tree.Pinned(pintree.MapParentPods)
	return podns.NewParents(m), err
}

// parentEntries returns the view and what is in it.
func (d *Datapath) parentEntries() (podns.Parents, map[podns.ParentKey]podns.ParentPod, error) {
	m, err := d.parentsMap()
	if err != nil {
		return m, nil, err
	}
	all, err := m.All()
	if err != nil {
		return m, nil, fmt.Errorf("parent devices: %w", err)
	}
	return m, all, nil
}

// parentSender is how the packets of a pod's device are known at its parent.
type parentSender struct {
	parent int // ifindex on the node
	flags  uint32
	any    podns.ParentKey   // all packets of the namespace by this parent
	own    []podns.ParentKey // the device's among them, and what is known of packets without their namespace
	others []podns.ParentKey // those of other devices of the pod at the same parent
}

// findParent describes device index in ns; false when it has no parent on the node. A device and its parent in one namespace are both the
// pod's.
func findParent(a *attach.Attacher, ns *netns.NS, index int) (s parentSender, ok bool, err error) {
	h, err := rtnl.NewIn(ns)
	if err != nil {
		return s, false, err
	}
	defer h.Close()
	l, err := h.LinkByIndex(index)
	if err != nil || l.PeerIndex == 0 || l.PeerNetnsID < 0 || l.Kind != "macvlan" && l.Kind != "ipvlan" && l.Kind != "vlan" {
		return s, false, err
	}
	node, err := a.Netlink()
	if err != nil {
		return s, false, err
	}
	if parent, err := node.LinkByIndex(l.PeerIndex); errors.Is(err, rtnl.ErrNotFound) || err == nil && !parent.Ethernet {
		return s, false, nil
	} else if err != nil {
		return s, false, err
	}
	var cookie uint64
	if err := ns.Do(func() (err error) { cookie, err = pintree.SoNetnsCookie(); return err }); err != nil {
		return s, false, err
	}
	s.parent = l.PeerIndex
	s.any = podns.ParentKey{Ifindex: uint32(l.PeerIndex), Vlan: l.Sub.VLANID, Netns: cookie}
	bare := s.any
	bare.Netns = 0
	if l.Kind == "vlan" {
		s.own = []podns.ParentKey{bare}
		return s, true, nil
	}
	keys, err := parentKeysOf(h, l, s.any, bare)
	if err != nil {
		return s, false, err
	}
	s.own, s.flags = keys, podns.ParentByMAC
	if l.Kind == "ipvlan" {
		s.flags = podns.ParentByAddr
	}
	links, err := h.Links()
	if err != nil {
		return s, false, err
	}
	for _, o := range links {
		if o.Index == index || o.Kind != l.Kind || o.PeerIndex != l.PeerIndex || o.PeerNetnsID != l.PeerNetnsID {
			continue
		}
		keys, err := parentKeysOf(h, o, s.any)
		if err != nil {
			return s, false, err
		}
		s.others = append(s.others, keys...)
	}
	return s, true, nil
}

// parentKeysOf are the keys of the packets of a macvlan or ipvlan device among those of the keys in of.
func parentKeysOf(h *rtnl.Handle, l rtnl.Link, of ...podns.ParentKey) (keys []podns.ParentKey, err error) {
	if l.Kind == "macvlan" {
		for _, k := range of {
			keys = append(keys, k.WithMAC(l.MAC))
		}
		return keys, nil
	}
	addrs, err := h.AddrsOf(l.Index, rtnl.FamilyAll)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", l.Name, err)
	}
	seen := make(map[netip.Addr]bool)
	for _, a := range addrs {
		addr := a.Prefix.Addr().Unmap()
		if seen[addr] || addr.IsLinkLocalUnicast() { // which several pods may have
			continue
		}
		seen[addr] = true
		for _, k := range of {
			keys = append(keys, k.WithAddr(addr))
		}
	}
	return keys, nil
}

// guardAtParent has the program on the parent of device index in ns do what set enters for the packets of owner's device. False: the device has
// no parent on the node, or that leaves no room for the program. The writers' lock is held, and a is open until back is done.
func (d *Datapath) guardAtParent(a *attach.Attacher, ns *netns.NS, index int, owner uint64, set func(*podns.ParentPod), back *rollback.Stack) (bool, error) {
	s, ok, err := findParent(a, ns, index)
	if err != nil || !ok {
		return false, err
	}
	m, before, err := d.parentEntries()
	if err != nil {
		return false, err
	}
	restore := func() error { return d.restoreParent(a, m, s.parent, before) }
	back.Push("parent device", func(context.Context) error { return restore() })
	// Entries first: without the program they do nothing, and they lead DEL and GC to it.
	for k, v := range s.entries(before, owner, set) {
		if err := m.Put(k, v); err != nil {
			return false, pintree.WrapFull(pintree.MapParentPods, err)
		}
	}
	err = a.Attach(s.parent, hook.OfParent(), false)
	if errors.Is(err, ErrConflict) {
		d.tree.Log.Warn("the parent device leaves no room: what the pod sends past its own queue meets neither rules nor limit",
			log.Int("ifindex", s.parent), log.Error(err))
		return false, restore()
	}
	if err != nil {
		return false, fmt.Errorf("parent device: %w", err)
	}
	return true, nil
}

// entries are what Guard writes, beside those of before.
func (s parentSender) entries(before map[podns.ParentKey]podns.ParentPod, owner uint64, set func(*podns.ParentPod)) map[podns.ParentKey]podns.ParentPod {
	out := make(map[podns.ParentKey]podns.ParentPod)
	for _, k := range s.others {
		if _, known := before[k]; !known {
			out[k] = podns.ParentPod{Owner: owner}
		}
	}
	mine := podns.ParentPod{Owner: owner}
	for _, k := range s.own {
		if v := before[k]; v.Owner == owner {
			mine = v
		}
	}
	set(&mine)
	for _, k := range s.own {
		out[k] = mine
	}
	// Another device of the pod may have this one: what belongs to none of the two is under the rules of the first.
	v, known := before[s.any]
	if s.any.Netns != 0 && (!known || v.Owner == owner) {
		mine.Flags = s.flags
		out[s.any] = mine
	}
	return out
}

// restoreParent brings the entries of one parent back to what they were.
func (d *Datapath) restoreParent(a *attach.Attacher, m podns.Parents, parent int, before map[podns.ParentKey]podns.ParentPod) error {
	now, err := m.All()
	if err != nil {
		return fmt.Errorf("parent devices: %w", err)
	}
	of := func(all map[podns.ParentKey]podns.ParentPod) map[podns.ParentKey]podns.ParentPod {
		out := maps.Clone(all)
		maps.DeleteFunc(out, func(k podns.ParentKey, _ podns.ParentPod) bool { return int(k.Ifindex) != parent })
		return out
	}
	return d.changeParents(a, m, of(now), of(before))
}

// releaseAtParent takes back what Guard entered for owner: unset says what of it. With the last the program goes. Missing is success. The
// writers' lock is held.
func (d *Datapath) releaseAtParent(a *attach.Attacher, owner uint64, unset func(*podns.ParentPod)) error {
	return d.releaseParentEntries(a, func(v podns.ParentPod) bool { return v.Owner == owner }, unset)
}

// collectParents releases what belongs to no valid owner.
func (d *Datapath) collectParents(a *attach.Attacher, valid func(uint64) bool) error {
	return d.releaseParentEntries(a, func(v podns.ParentPod) bool { return !valid(v.Owner) }, func(v *podns.ParentPod) { v.Device, v.Limit = 0, 0 })
}

func (d *Datapath) releaseParentEntries(a *attach.Attacher, which func(podns.ParentPod) bool, unset func(*podns.ParentPod)) error {
	m, all, err := d.parentEntries()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	left := maps.Clone(all)
	for k, v := range all {
		if !which(v) {
			continue
		}
		if unset(&v); v.Used() {
			left[k] = v
		} else {
			delete(left, k)
		}
	}
	inherit(all, left)
	return d.changeParents(a, m, all, left)
}

// changeParents makes the entries from what they are to what they shall be. Programs of devices that are no parents any more go first: the
// entries lead to them.
func (d *Datapath) changeParents(a *attach.Attacher, m podns.Parents, from, to map[podns.ParentKey]podns.ParentPod) error {
	unused := make(map[int]bool)
	for k := range from {
		unused[int(k.Ifindex)] = true
	}
	for k := range to {
		delete(unused, int(k.Ifindex))
	}
	var errs []error
	for index := range unused {
		errs = append(errs, a.Detach(index, hook.OfParent()))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for k, v := range to {
		if from[k] != v {
			errs = append(errs, m.Put(k, v))
		}
	}
	for k := range from {
		if _, stays := to[k]; !stays {
			errs = append(errs, m.Delete(k))
		}
	}
	return errors.Join(errs...)
}

// inherit gives what belonged to all packets of a namespace to another device of the pod at the same parent.
func inherit(all, left map[podns.ParentKey]podns.ParentPod) {
	for k, v := range maps.Clone(left) {
		first := k.AnyOf()
		was, had := all[first]
		if _, taken := left[first]; !taken && had && k.Netns != 0 && v.Used() {
			v.Flags = was.Flags
			left[first] = v
		}
	}
}

// parentDevices returns the parent devices that have, or should have, the program. A tree of an older build has none.
func (d *Datapath) parentDevices() (map[int]bool, error) {
	_, all, err := d.parentEntries()
	if err != nil {
		return nil, pintree.IgnoreNotLoaded(err)
	}
	set := make(map[int]bool)
	for k := range all {
		set[int(k.Ifindex)] = true
	}
	return set, nil
}

// checkParent compares the entries of owner with what Guard has entered, by has, and looks at the programs on the parents. A device without
// entries is right: its parent may have no room.
func (d *Datapath) checkParent(a *attach.Attacher, owner uint64, has func(podns.ParentPod) bool) error {
	_, all, err := d.parentEntries()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	var errs []error
	devices := make(map[int]bool)
	for k, v := range all {
		if v.Owner != owner || !v.Used() {
			continue
		}
		devices[int(k.Ifindex)] = true
		if !has(v) {
			errs = append(errs, pintree.Differs("what the parent device %d knows of the pod is of another device", k.Ifindex))
		}
	}
	for index := range devices {
		errs = append(errs, attach.CheckHooks(a, index, "", hook.OfParent()))
	}
	return errors.Join(errs...)
}

// setParentMAC tells the programs at parents that owner's device has another hardware address.
func (d *Datapath) setParentMAC(ctx context.Context, owner uint64, mac net.HardwareAddr) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.parentsMap, func(m podns.Parents) error {
		all, err := m.All()
		if err != nil {
			return fmt.Errorf("parent devices: %w", err)
		}
		var errs []error
		for k, v := range all {
			if to := k.AnyOf().WithMAC(mac); v.Owner == owner && v.Used() && k.IsMAC() && to != k {
				errs = append(errs, m.Put(to, v), m.Delete(k))
			}
		}
		return errors.Join(errs...)
	})
}
