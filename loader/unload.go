// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Unload removes everything of the datapath of this network namespace: links, filters, qdiscs we made, pins, the decision. Pods
// lose what it did for them. The handle is of no more use than for Close.
func (d *Datapath) Unload(ctx context.Context) error {
	unlock, err := d.tree.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	devices, err := d.everyDevice()
	errs := []error{err, attach.DetachSockets(d.tree)}
	for index := range devices {
		errs = append(errs, a.Detach(index, hook.All()))
	}
	errs = append(errs, d.detachPodns(a), d.detachLimits())
	if err := errors.Join(errs...); err != nil {
		return err // the pins still say what is to be removed
	}
	if err := errors.Join(d.tree.Close(), removeTree(d.tree.Paths)); err != nil {
		return err
	}
	// Only when they are empty: other namespaces may have trees there.
	_ = os.Remove(filepath.Dir(d.tree.Paths.Dir))
	_ = os.Remove(filepath.Dir(filepath.Dir(d.tree.Paths.Dir)))
	return nil
}

// everyDevice returns all that may have something of ours: what the maps and pins name, and, in case a crash came between a
// filter and its entry, every device that exists.
func (d *Datapath) everyDevice() (map[int]bool, error) {
	set := make(map[int]bool)
	pods, uplinks, err := d.tree.AttachedDevices()
	if err != nil && !errors.Is(err, ErrNotLoaded) {
		return nil, err
	}
	for _, part := range []map[int]bool{pods, uplinks} {
		for index := range part {
			set[index] = true
		}
	}
	for _, dir := range []string{d.tree.Paths.Links(), d.tree.Paths.Clsact()} {
		entries, err := pintree.Names(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range entries {
			dev, _, _ := strings.Cut(strings.TrimPrefix(name, "dev"), "_")
			if index, err := strconv.Atoi(dev); err == nil {
				set[index] = true
			}
		}
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		set[l.Index] = true
	}
	return set, nil
}
