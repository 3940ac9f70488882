// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/log"
)

// replaceAttached puts the programs in dir wherever programs of ours hang, device by device. A packet meets the old or the
// new program, never none: links are updated and filters replaced in place. A device that has gone is no error. Nor is
// what another owner has put in our place on a pod's device: that is the pod's loss, and must not keep the node from an upgrade.
func (d *Datapath) replaceAttached(ctx context.Context, dir string) error {
	pods, uplinks, err := d.tree.AttachedDevices()
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, dir)
	defer a.Close()
	replace := func(indexes map[int]bool, hooks []hook.Hook, pod bool) error {
		for index := range indexes {
			if err := ctx.Err(); err != nil {
				return err
			}
			hooks := hooks
			if pod {
				hooks = a.InForce(index, hooks)
			}
			err := a.Attach(index, hooks, pod)
			if errors.Is(err, ErrNoDevice) {
				d.tree.Log.Info("device has gone", log.Int("ifindex", index))
				continue
			}
			if pod && errors.Is(err, ErrConflict) {
				d.tree.Log.Warn("not replaced", log.Int("ifindex", index), log.Error(err))
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := replace(pods, hook.OfPod(), true); err != nil {
		return err
	}
	checked, err := d.tree.MACCheckedDevices()
	if err != nil {
		return err
	}
	if err := replace(checked, hook.OfMACCheck(), true); err != nil {
		return err
	}
	guarded, err := d.parentDevices()
	if err != nil {
		return err
	}
	if err := replace(guarded, hook.OfParent(), true); err != nil {
		return err
	}
	for _, bare := range []bool{false, true} {
		if err := replace(uplinksOf(uplinks, bare), hook.OfUplink(bare), false); err != nil {
			return err
		}
	}
	if err := errors.Join(d.replacePodns(ctx, a), d.replaceLimits(a), a.ReplaceXDP()); err != nil {
		return err
	}
	return attach.ReplaceSockets(d.tree, dir)
}

// uplinksOf returns the uplinks without Ethernet header (bare), or the others.
func uplinksOf(uplinks map[int]bool, bare bool) map[int]bool {
	set := make(map[int]bool)
	for index, b := range uplinks {
		if b == bare {
			set[index] = true
		}
	}
	return set
}
