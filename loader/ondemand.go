// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj/elf"
	"github.com/sluice-cni/sluice/pkg/log"
)

// onDemand returns the objects of the programs that go onto a device together with h's and that wait for one; nil for those that every load
// verifies. Most nodes never have a device that needs them, and they are nearly half of the verifier's work.
func (h hook) onDemand() map[string]readObject {
	for _, group := range []map[string]readObject{
		{hookBareIngress().program: elf.LoadUplinkIngress, hookBareEgress().program: elf.LoadUplinkEgress},
		{hookOwnEgress().program: elf.LoadOwnEgress, hookOwnIngress().program: elf.LoadOwnIngress},
	} {
		if group[h.program] != nil {
			return group
		}
	}
	return nil
}

// needed is what a load verifies: what every load does, and what a device has asked for since the node booted.
// The set in force knows: so an upgrade that the kernel refuses still changes nothing.
func (d *Datapath) needed() map[string]readObject {
	from := objects()
	if dir, err := d.committedDir(); err == nil {
		for _, h := range allHooks() {
			if exists(filepath.Join(dir, h.program)) {
				maps.Copy(from, h.onDemand())
			}
		}
	}
	return from
}

// programFor opens the program of h in the set at dir. One that had to wait for its first device is verified and pinned there
// now, by what was drawn for the set. The writers' lock is held.
func (d *Datapath) programFor(dir string, h hook) (*ebpf.Program, error) {
	p, err := programAt(dir, h.program)
	group := h.onDemand()
	if group == nil || !errors.Is(err, ErrNotLoaded) {
		return p, err
	}
	if err := d.loadInto(dir, group); err != nil {
		return nil, err
	}
	return programAt(dir, h.program)
}

// loadInto adds programs to the set at dir. One that is pinned there already, by a load that was killed between two, stays.
func (d *Datapath) loadInto(dir string, from map[string]readObject) error {
	k, err := d.constants()
	if err != nil {
		return err
	}
	if id := filepath.Base(dir)[len(buildPrefix):]; id != k.build() { // or freshPrefix, as long
		return fmt.Errorf("%w: %v are not in the set %s, and this build or configuration is another: the next ADD loads it", ErrNotLoaded, slices.Sorted(maps.Keys(from)), id)
	}
	drawn, err := drawnFor(dir)
	if err != nil {
		return err
	}
	from = maps.Clone(from)
	maps.DeleteFunc(from, func(name string, _ readObject) bool { return exists(filepath.Join(dir, name)) })
	specs, err := d.specs(k, drawn, from)
	if err != nil {
		return err
	}
	shared, err := d.openMaps(specs)
	if err != nil {
		return err
	}
	raiseMemlock()
	var errs []error
	for _, v := range verifyAll(specs, shared) {
		if v.err == nil {
			v.err = v.pin(dir)
		}
		errs = append(errs, v.err)
	}
	if err := errors.Join(errs...); refusal(err) {
		return fmt.Errorf("%w: the kernel refuses a program: %w", ErrUnavailable, err)
	} else if err != nil {
		return err
	}
	d.log.Info("programs added", log.String("pins", dir), log.Any("programs", slices.Sorted(maps.Keys(from))))
	return nil
}
