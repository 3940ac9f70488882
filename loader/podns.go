// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// PodnsDevice is a pod's device as it is inside the pod's network namespace.
type PodnsDevice struct {
	Netns   string // path of the namespace
	Ifindex int    // in that namespace
	IfName  string // for messages
}

// podnsRequest is what an endpoint asks of its podns device.
type podnsRequest struct {
	Ref         attachments.ID
	Device      PodnsDevice
	HostIfindex int    // of the host veth; 0: none
	Group       uint32 // as in policies.Apply
	Policy      *policy.Policy
	Flags       uint32 // features

	NetworkPolicy NetworkPolicyPod
}

// restricted reports whether what passes the device is, or may become, restricted.
func (r podnsRequest) restricted() bool { return !r.Policy.Empty() || r.NetworkPolicy.UID != "" }

// podnsHooks returns the programs that the features in flags put on the podns device. hostEnd: the device has a host end too, on which
// most features do their work.
func podnsHooks(flags uint32, hostEnd bool) []hook.Hook {
	if flags&endpoint.FlagAdmit != 0 && !hostEnd {
		return []hook.Hook{hook.NsEgress(), hook.NsIngress()}
	}
	return nil
}

func (d *Datapath) podnsMap() (podns.Map, error) {
	m, err := d.tree.Pinned(pintree.MapPodnsDevices)
	return podns.New(m), err
}

// allPodns returns the map and what is in it.
func (d *Datapath) allPodns() (podns.Map, map[uint32]podns.Device, error) {
	m, err := d.podnsMap()
	if err != nil {
		return m, nil, err
	}
	all, err := m.All()
	if err != nil {
		return m, nil, fmt.Errorf("podns devices: %w", err)
	}
	return m, all, nil
}

// podnsPlace reads where device number is; false when nothing is known of it.
func (d *Datapath) podnsPlace(number uint32) (attach.Place, bool, error) {
	return attach.ReadPlace(d.tree.Paths.PodnsMark(number))
}

// enablePodns turns on f on the podns device: an entry, counters, and the programs that f has there. An entry of the same
// owner for another device or namespace is replaced: its DEL never came.
func (d *Datapath) enablePodns(ctx context.Context, a *attach.Attacher, r podnsRequest, back *rollback.Stack) error {
	m, err := d.podnsMap()
	if err != nil {
		return err
	}
	ns, err := netns.Open(r.Device.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	place := attach.Place{Inode: ns.Inode(), Ifindex: r.Device.Ifindex, Netns: r.Device.Netns}
	number, old, err := d.podnsNumber(m, a, r.Ref.Owner(), place)
	if err != nil {
		return err
	}
	conn, err := attach.OpenIn(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	if place.Made, err = conn.AddClsact(place.Ifindex); err != nil {
		return err
	}
	if old == nil {
		back.Push("podns device", func(context.Context) error { return d.releasePodns(a, m, number) })
		if err := pintree.LinkOwner(d.tree.Paths.Podns(), r.Ref.Owner(), 0, number); err != nil {
			return fmt.Errorf("note device %d: %w", number, err)
		}
		if err := os.Symlink(place.String(), d.tree.Paths.PodnsMark(number)); err != nil {
			return fmt.Errorf("note device %d: %w", number, err)
		}
	}
	v := podns.Device{Owner: r.Ref.Owner(), Pod: r.Ref.Pod(), Flags: r.Flags, HostIfindex: uint32(r.HostIfindex)}
	if old != nil {
		v.Flags |= old.Flags
		was := *old
		back.Push("podns device", func(context.Context) error { return m.Put(number, &was) })
	}
	if err := d.putPodns(m, number, &v); err != nil {
		return err
	}
	if r.HostIfindex == 0 && r.Flags&endpoint.FlagAdmit != 0 {
		if _, err := d.applyPolicy(podns.Key(number), r.Ref, r.Group, r.Policy, r.NetworkPolicy, back); err != nil {
			return err
		}
	}
	if err := a.PutPlacedFilters(conn, place.Ifindex, number, podnsHooks(r.Flags, r.HostIfindex != 0)); err != nil {
		return err
	}
	if r.HostIfindex != 0 || !r.restricted() {
		return nil
	}
	_, err = d.guardAtParent(a, ns, place.Ifindex, v.Owner, func(v *podns.ParentPod) { v.Device = number }, back)
	return err
}

func (d *Datapath) putPodns(m podns.Map, number uint32, v *podns.Device) error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	if err := eps.Stats.Create(podns.Key(number), v.Pod, v.Owner); err != nil {
		return pintree.WrapFull("sl_ep_stats", err)
	}
	if err := m.Put(number, v); err != nil {
		return pintree.WrapFull("sl_ns_devices", err)
	}
	return nil
}

// podnsNumber finds the number of owner's device at place, with its entry, or picks a free one.
func (d *Datapath) podnsNumber(m podns.Map, a *attach.Attacher, owner uint64, place attach.Place) (uint32, *podns.Device, error) {
	mine, err := d.podnsOf(m, owner)
	if err != nil {
		return 0, nil, err
	}
	for number, v := range mine {
		at, ok, err := d.podnsPlace(number)
		if err != nil {
			return 0, nil, err
		}
		if ok && at.Inode == place.Inode && at.Ifindex == place.Ifindex {
			return number, &v, nil
		}
		if err := d.releasePodns(a, m, number); err != nil {
			return 0, nil, err
		}
	}
	var failed error
	number, err := podns.Free(func(n uint32) bool {
		_, taken, err := m.Get(n)
		failed = err
		return err == nil && (taken || pintree.Exists(d.tree.Paths.PodnsMark(n)))
	})
	if failed != nil {
		return 0, nil, fmt.Errorf("podns devices: %w", failed)
	}
	return number, nil, err
}

// podnsOf returns the devices of owner, by number. A tree that was loaded by a build without links is read as a whole.
func (d *Datapath) podnsOf(m podns.Map, owner uint64) (map[uint32]podns.Device, error) {
	out := make(map[uint32]podns.Device)
	if !pintree.AllLinked(d.tree.Paths.Podns()) {
		all, err := m.All()
		if err != nil {
			return nil, fmt.Errorf("podns devices: %w", err)
		}
		for number, v := range all {
			if v.Owner == owner {
				out[number] = v
			}
		}
		return out, nil
	}
	number, linked := pintree.Linked(d.tree.Paths.Podns(), owner, 0)
	if !linked {
		return out, nil
	}
	v, ok, err := m.Get(number)
	if err != nil {
		return nil, fmt.Errorf("podns device %d: %w", number, err)
	}
	if ok && v.Owner == owner {
		out[number] = v
	}
	return out, nil
}

// linkPodnsOwners gives each device its link. The load calls it: a former build may have made entries.
func (d *Datapath) linkPodnsOwners() error {
	_, all, err := d.allPodns()
	if err != nil {
		return err
	}
	for number, v := range all {
		if err := pintree.LinkOwner(d.tree.Paths.Podns(), v.Owner, 0, number); err != nil {
			return fmt.Errorf("note device %d: %w", number, err)
		}
	}
	return pintree.NoteAllLinked(d.tree.Paths.Podns())
}

// disablePodns takes the features f from owner's podns devices. With the last one the entry, counters and programs go. A namespace
// that has gone took its filters along.
func (d *Datapath) disablePodns(a *attach.Attacher, owner uint64, flags uint32) error {
	m, err := d.podnsMap()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	mine, err := d.podnsOf(m, owner)
	if err != nil {
		return err
	}
	var errs []error
	for number, v := range mine {
		left := v
		left.Flags &^= flags
		switch {
		case left.Flags == 0:
			errs = append(errs, d.releasePodns(a, m, number))
		case left.Flags != v.Flags:
			errs = append(errs, m.Put(number, &left), d.dropPodnsHooks(a, number, v, left))
			if flags&endpoint.FlagAdmit != 0 {
				errs = append(errs, d.releasePolicy(podns.Key(number), owner), d.unguardPodns(a, v))
			}
		}
	}
	return errors.Join(errs...)
}

// unguardPodns takes back what the parent device knows of v's rules.
func (d *Datapath) unguardPodns(a *attach.Attacher, v podns.Device) error {
	return d.releaseAtParent(a, v.Owner, func(p *podns.ParentPod) { p.Device = 0 })
}

// dropPodnsHooks detaches what the features of left do not need any more.
func (d *Datapath) dropPodnsHooks(a *attach.Attacher, number uint32, v, left podns.Device) error {
	needed := podnsHooks(left.Flags, left.HostIfindex != 0)
	unneeded := slices.DeleteFunc(podnsHooks(v.Flags, v.HostIfindex != 0), func(h hook.Hook) bool { return slices.Contains(needed, h) })
	place, ok, err := d.podnsPlace(number)
	if err != nil || !ok {
		return err
	}
	return a.InNetns(place, func(conn *attach.Conn) error {
		var errs []error
		for _, h := range unneeded {
			errs = append(errs, conn.DeletePlacedFilter(place.Ifindex, h, number))
		}
		return errors.Join(errs...)
	})
}

// releasePodns removes all there is of device number: programs, entry, counters, and the note of where it is, which goes last.
func (d *Datapath) releasePodns(a *attach.Attacher, m podns.Map, number uint32) error {
	place, ok, err := d.podnsPlace(number)
	if err == nil && ok {
		err = a.InNetns(place, func(conn *attach.Conn) error { return conn.ClearPlaced(place, number) })
	}
	if err != nil {
		return fmt.Errorf("device %d: %w", number, err)
	}
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	err = d.dropPolicy(podns.Key(number))
	v, known, _ := m.Get(number)
	if known {
		err = errors.Join(err, d.unguardPodns(a, v))
	}
	return errors.Join(pintree.IgnoreNotLoaded(err), m.Delete(number), eps.Stats.Retire(podns.Key(number)),
		pintree.UnlinkOwner(d.tree.Paths.Podns(), v.Owner, 0, number), pintree.RemovePin(d.tree.Paths.PodnsMark(number)))
}

// detachPodns removes the programs from every podns device that is known, and leaves maps and notes as they are.
func (d *Datapath) detachPodns(a *attach.Attacher) error {
	marks, err := pintree.Names(d.tree.Paths.Podns())
	errs := []error{err}
	for _, name := range marks {
		number, err := strconv.ParseUint(strings.TrimPrefix(name, "dev"), 10, 32)
		if err != nil {
			continue
		}
		place, ok, err := d.podnsPlace(uint32(number))
		if err == nil && ok {
			err = a.InNetns(place, func(conn *attach.Conn) error { return conn.ClearPlaced(place, uint32(number)) })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// replacePodns puts the attacher's programs on every podns device that has programs.
func (d *Datapath) replacePodns(ctx context.Context, a *attach.Attacher) error {
	_, all, err := d.allPodns()
	if err != nil {
		return err
	}
	for number, v := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		place, ok, err := d.podnsPlace(number)
		if err == nil && ok {
			err = a.InNetns(place, func(conn *attach.Conn) error { return d.replaceInPod(a, conn, place.Ifindex, number, v) })
		}
		if rtnl.TCGone(err) || errors.Is(err, ErrNoDevice) {
			d.tree.Log.Info("device has gone", log.Uint32("number", number))
			continue
		}
		if err != nil {
			return fmt.Errorf("device %d: %w", number, err)
		}
	}
	return nil
}

// replaceInPod puts the attacher's programs on a podns device. Who is root in the pod may have put something else in our place
// there: that is the pod's loss, and must not keep the node from an upgrade.
func (d *Datapath) replaceInPod(a *attach.Attacher, conn *attach.Conn, index int, number uint32, v podns.Device) error {
	for _, h := range podnsHooks(v.Flags, v.HostIfindex != 0) {
		err := a.PutPlacedFilters(conn, index, number, []hook.Hook{h})
		if errors.Is(err, ErrConflict) {
			d.tree.Log.Warn("not replaced", log.Uint32("number", number), log.Error(err))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// collectPodns releases the podns devices whose owner is not valid, and what was noted or counted of devices without entry.
func (d *Datapath) collectPodns(a *attach.Attacher, valid func(uint64) bool) error {
	m, all, err := d.allPodns()
	if err != nil {
		return err
	}
	var errs []error
	for number, v := range all {
		if !valid(v.Owner) {
			errs = append(errs, d.releasePodns(a, m, number))
		}
	}
	marks, err := pintree.Names(d.tree.Paths.Podns())
	errs = append(errs, err)
	for _, name := range marks {
		number, err := strconv.ParseUint(strings.TrimPrefix(name, "dev"), 10, 32)
		if _, ok := all[uint32(number)]; err == nil && !ok {
			errs = append(errs, d.releasePodns(a, m, uint32(number)))
		}
	}
	errs = append(errs, pintree.CollectLinks(d.tree.Paths.Podns(), func(owner uint64, _, number uint32) bool {
		v, ok, err := m.Get(number)
		return err != nil || ok && v.Owner == owner
	}))
	return errors.Join(errs...)
}

// checkPodns compares the podns device of r with what Enable has made.
func (d *Datapath) checkPodns(a *attach.Attacher, r podnsRequest) error {
	m, err := d.podnsMap()
	if err != nil {
		return err
	}
	mine, err := d.podnsOf(m, r.Ref.Owner())
	if err != nil {
		return err
	}
	for number, v := range mine {
		if v.Flags&r.Flags != r.Flags {
			return pintree.Differs("%s has %v, want %v", r.Device.IfName, endpoint.FlagNames(v.Flags), endpoint.FlagNames(r.Flags))
		}
		if r.Flags&endpoint.FlagAdmit != 0 && r.HostIfindex == 0 {
			if _, err := d.checkPolicy(podns.Key(number), r.Ref, r.Policy, r.NetworkPolicy); err != nil {
				return err
			}
		}
		guarded := func(p podns.ParentPod) bool { return p.Device == number || !r.restricted() }
		return errors.Join(d.checkPodnsHooks(a, r.Device, number, podnsHooks(r.Flags, r.HostIfindex != 0)),
			d.checkParent(a, v.Owner, guarded))
	}
	return pintree.Differs("no programs for %s in %s", r.Device.IfName, r.Device.Netns)
}

func (d *Datapath) checkPodnsHooks(a *attach.Attacher, dev PodnsDevice, number uint32, hooks []hook.Hook) error {
	place, ok, err := d.podnsPlace(number)
	if err != nil {
		return err
	}
	if !ok || place.Ifindex != dev.Ifindex {
		return pintree.Differs("programs were attached to device %d of %s, not to %d of %s", place.Ifindex, place.Netns, dev.Ifindex, dev.Netns)
	}
	place.Netns = dev.Netns // a namespace can have several paths: it is compared itself
	looked := false
	err = a.InNetns(place, func(conn *attach.Conn) error {
		looked = true
		var errs []error
		for _, h := range hooks {
			f, _, err := conn.FilterAt(place.Ifindex, h)
			if err == nil && (!f.Is(h) || f.Class != number) {
				err = pintree.Differs("%s is not attached to the %s of %s in the pod", h.Program, h.Direction(), dev.IfName)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err == nil && !looked {
		err = pintree.Differs("%s leads to another namespace than ADD attached to", place.Netns)
	}
	return err
}

// podnsInfo is what is known of a podns device.
type podnsInfo struct {
	Number  uint32
	Owner   uint64
	Flags   uint32
	Netns   string // path of the namespace
	Ifindex int    // in that namespace
}

// podnsWithoutHostVeth describes the devices that have no host veth.
func (d *Datapath) podnsWithoutHostVeth() ([]podnsInfo, error) {
	_, all, err := d.allPodns()
	if err != nil {
		return nil, err
	}
	var out []podnsInfo
	for number, v := range all {
		if v.HostIfindex != 0 {
			continue
		}
		place, _, err := d.podnsPlace(number)
		if err != nil {
			return nil, err
		}
		out = append(out, podnsInfo{Number: number, Owner: v.Owner, Flags: v.Flags, Netns: place.Netns, Ifindex: place.Ifindex})
	}
	return out, nil
}
