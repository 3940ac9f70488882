// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// collectEndpoints removes the entries whose owner is not valid. It goes on after errors. The writers' lock is held.
func (d *Datapath) collectEndpoints(a *attach.Attacher, valid func(uint64) bool) error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	var stale []endpointEntry
	err = eps.Addrs.Each(func(addr netip.Addr, v *endpoint.Value) bool {
		if !valid(v.Owner) {
			stale = append(stale, endpointEntry{addr, *v})
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	return d.clearEndpoints(a, eps, stale, ^Feature(0))
}

// collectDevices removes counters and tracked devices without an endpoint, links whose device has gone, and marks of qdiscs that went with theirs.
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
			errs = append(errs, a.Detach(int(index), hook.OfPod()), eps.Stats.Retire(index))
		}
	}
	tracked, err := eps.Devices.Keys()
	errs = append(errs, err)
	for _, index := range tracked {
		if !used[index] {
			errs = append(errs, eps.Devices.Delete(index))
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
			err = file.Remove(pin)
		case ours && isPodHook(h) && !used[uint32(index)]:
			err = attach.DropLink(d.tree, index, h)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, d.collectMACChecks(a), d.collectMarks())...)
}

func isPodHook(h hook.Hook) bool { return h == hook.FromPod() || h == hook.ToPod() }

// collectMarks forgets what was remembered of devices that are no more, and of qdiscs: that of a device which stays goes with its
// programs, while the mark cannot on a read-only bpffs.
func (d *Datapath) collectMarks() error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	qdiscs, err := h.IngressQdiscs()
	if err != nil {
		return err
	}
	return errors.Join(
		collectMarksIn(h, d.tree.Paths.Clsact(), func(index int) bool { return qdiscs[index] == rtnl.QdiscClsact }),
		collectMarksIn(h, d.tree.Paths.RoutedDevs(), func(int) bool { return true }),
	)
}

// collectMarksIn removes the marks of devices that have gone, or that holds does not know any more.
func collectMarksIn(h *rtnl.Handle, dir string, holds func(index int) bool) error {
	marks, err := pintree.Names(dir)
	errs := []error{err}
	for _, name := range marks {
		index, err := strconv.Atoi(strings.TrimPrefix(name, "dev"))
		if err == nil {
			_, err = h.LinkByIndex(index)
		}
		if errors.Is(err, rtnl.ErrNotFound) || err == nil && !holds(index) {
			err = file.Remove(filepath.Join(dir, name))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
