// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// track enters a host veth into sl_pod_devices and returns Value.Tracked of its addresses.
func track(eps pintree.EndpointMaps, index uint32, back *rollback.Stack) (uint8, error) {
	had, err := eps.Devices.Has(index)
	if err != nil {
		return 0, fmt.Errorf("device %d: %w", index, err)
	}
	if had {
		return 1, nil
	}
	known, err := eps.Devices.Track(index)
	if err != nil {
		return 0, pintree.WrapFull(pintree.MapPodDevices, err)
	}
	back.Push("tracked device", func(context.Context) error { return eps.Devices.Delete(index) })
	return trackedIf(known), nil
}

func trackedIf(known bool) uint8 {
	if known {
		return 1
	}
	return 0
}

// trackDevices enters the host veths of all endpoints into sl_pod_devices. The load calls it before it attaches programs: the map may be
// new, with endpoints of a build that did not have it. An endpoint whose device finds no room is not tracked, and counts as one that is
// there. The writers' lock is held.
func (d *Datapath) trackDevices() error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	var all []endpointEntry
	err = eps.Addrs.Each(func(a netip.Addr, v *endpoint.Value) bool {
		all = append(all, endpointEntry{a, *v})
		return true
	})
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	tracked := make(map[uint32]uint8)
	for _, e := range all {
		now, seen := tracked[e.v.Ifindex]
		if !seen {
			known, err := eps.Devices.Track(e.v.Ifindex)
			if err != nil && !errors.Is(err, unix.E2BIG) {
				return fmt.Errorf("track device %d: %w", e.v.Ifindex, err)
			}
			if err != nil {
				d.tree.Log.Warn("device is not tracked", log.Int("ifindex", int(e.v.Ifindex)), log.Error(pintree.WrapFull(pintree.MapPodDevices, err)))
			}
			now = trackedIf(known)
			tracked[e.v.Ifindex] = now
		}
		if e.v.Tracked == now {
			continue
		}
		e.v.Tracked = now
		if err := eps.Addrs.Put(e.addr, &e.v); err != nil {
			return fmt.Errorf("endpoint %s: %w", e.addr, err)
		}
	}
	return nil
}
