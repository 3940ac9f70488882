// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
)

func (d *Datapath) collectEndpoints(a *attach.Attacher, valid func(uint64) bool) error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	var stale []entry
	shared := make(map[uint32]int)
	err = eps.Addrs.Each(func(addr netip.Addr, v *endpoint.Value) bool {
		shared[v.Ifindex]++
		if !valid(v.Owner) {
			stale = append(stale, entry{addr, *v})
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	return d.clear(a, eps, stale, ^Feature(0), shared)
}

// collectDevices removes counters without an endpoint, links whose device has gone, and marks of qdiscs that went with theirs.
func (d *Datapath) collectDevices(a *attach.Attacher) error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	used := make(map[uint32]bool)
	err = eps.Addrs.Each(func(_ netip.Addr, v *endpoint.Value) bool {
		used[v.Ifindex] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	counted, err := eps.Stats.Keys()
	errs := []error{err}
	for _, index := range counted {
		if !used[index] && !podnsmap.IsKey(index) {
			errs = append(errs, a.Detach(int(index), hook.OfPod()), eps.Stats.Delete(index))
		}
	}
	pins, err := pintree.Names(d.tree.Paths.Links())
	errs = append(errs, err)
	for _, name := range pins {
		pin := filepath.Join(d.tree.Paths.Links(), name)
		index, h, ours := pintree.ParseLinkName(name)
		lost, err := attach.Defunct(pin)
		switch {
		case err != nil:
		case lost:
			err = pintree.RemoveIfThere(pin)
		case ours && isPodHook(h) && !used[uint32(index)]:
			err = attach.New(d.tree).DropLink(index, h)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, d.collectMarks())...)
}

func isPodHook(h hook.Hook) bool { return h == hook.FromPod() || h == hook.ToPod() }
