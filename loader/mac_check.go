// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// FeatureMACCheck drops each frame of the device whose source MAC is not the pod's. It is turned on by itself. It asks for no
// address and makes no entry of one: a pod without addresses can have it, and has no other program then.
const FeatureMACCheck Feature = 1 << 31

// enableMACCheck writes the entry before it attaches the program, which drops everything without one.
func (d *Datapath) enableMACCheck(ctx context.Context, ep Endpoint) (err error) {
	if ep.Ref.ContainerID == "" || ep.HostIfindex <= 0 || len(ep.MAC) != 6 {
		return fmt.Errorf("endpoint %s: a source MAC check needs a host device and an Ethernet address", ep.Ref)
	}
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.tree.PodMACs()
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close() // after the rollback, which detaches
	var back rollback.Stack
	defer back.Rollback(ctx, &err)
	index := uint32(ep.HostIfindex)
	back.Push("source MAC check", func(context.Context) error { return dropMACCheck(a, m, index) })
	if err := m.Put(index, endpoint.NewPodMAC(ep.Ref.Owner(), ep.MAC)); err != nil {
		return pintree.WrapFull(pintree.MapPodMACs, err)
	}
	if err := a.Ensure(ep.HostIfindex, ep.hooks(hook.OfMACCheck()), false); err != nil {
		return fmt.Errorf("endpoint %s: %w", ep.Ref, err)
	}
	return nil
}

// dropMACCheck detaches before it removes the entry.
func dropMACCheck(a *attach.Attacher, m endpoint.PodMACs, index uint32) error {
	if err := a.Detach(int(index), hook.OfMACCheck()); err != nil {
		return err
	}
	return m.Delete(index)
}

// checkedDevices returns the devices of owner with a source MAC check: the one that is held, else those found in the whole map.
func checkedDevices(m endpoint.PodMACs, owner uint64, held Held) ([]uint32, error) {
	if index := uint32(held.HostIfindex); index != 0 {
		v, ok, err := m.Get(index)
		if err != nil || !ok || v.Owner != owner {
			return nil, err
		}
		return []uint32{index}, nil
	}
	all, err := m.All()
	if err != nil {
		return nil, fmt.Errorf("source MAC checks: %w", err)
	}
	var out []uint32
	for index, v := range all {
		if v.Owner == owner {
			out = append(out, index)
		}
	}
	return out, nil
}

// disableMACCheck removes what owner has. The device is mostly gone by then.
func (d *Datapath) disableMACCheck(ctx context.Context, owner uint64, held Held) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.PodMACs, func(m endpoint.PodMACs) error {
		mine, err := checkedDevices(m, owner, held)
		if err != nil {
			return err
		}
		a := attach.NewAttacher(d.tree, "")
		defer a.Close()
		var errs []error
		for _, index := range mine {
			errs = append(errs, dropMACCheck(a, m, index))
		}
		return errors.Join(errs...)
	})
}

// checkMACCheck compares the entry and the program.
func (d *Datapath) checkMACCheck(ep Endpoint) error {
	m, err := d.tree.PodMACs()
	if err != nil {
		return err
	}
	v, ok, err := m.Get(uint32(ep.HostIfindex))
	switch {
	case err != nil:
		return fmt.Errorf("source MAC checks: %w", err)
	case !ok:
		return pintree.Differs("no source MAC check of %s", ep.HostIfName)
	case v != *endpoint.NewPodMAC(ep.Ref.Owner(), ep.MAC):
		return pintree.Differs("the source MAC check of %s allows %s of owner %x, want %s of %x",
			ep.HostIfName, net.HardwareAddr(v.Mac[:]), v.Owner, ep.MAC, ep.Ref.Owner())
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return attach.CheckHooks(a, ep.HostIfindex, ep.HostIfName, hook.OfMACCheck())
}

// setCheckedMAC follows an administrator's change of the pod's MAC, as by the tuning plugin. A pod cannot ask for it.
func (d *Datapath) setCheckedMAC(ctx context.Context, owner uint64, mac net.HardwareAddr, held Held) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.PodMACs, func(m endpoint.PodMACs) error {
		mine, err := checkedDevices(m, owner, held)
		errs := []error{err}
		for _, index := range mine {
			errs = append(errs, m.Put(index, endpoint.NewPodMAC(owner, mac)))
		}
		return errors.Join(errs...)
	})
}

// collectMACChecks forgets devices that are gone. A device that exists keeps its check, whosever it is: it sends.
func (d *Datapath) collectMACChecks(a *attach.Attacher) error {
	checked, err := d.tree.MACCheckedDevices()
	if err != nil || len(checked) == 0 {
		return err
	}
	m, err := d.tree.PodMACs()
	errs := []error{err}
	for index := range checked {
		if a.Gone(index) {
			errs = append(errs, dropMACCheck(a, m, uint32(index)))
		}
	}
	return errors.Join(errs...)
}
