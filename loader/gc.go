// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// GC removes what is ours and belongs to no owner that keep accepts: endpoints, published ports, counters, programs and
// links whose device has gone. keep is called under the writers' lock, once per owner: an ADD writes its attachment record
// before it calls Enable, so a keep that reads the records when it is called never takes away what is being made. It goes on
// after errors.
//
// Where the run directory is read-only, attachments may have come without a record: GC waits until it is writable.
func (d *Datapath) GC(ctx context.Context, keep func(owner uint64) bool) error {
	if err := d.tree.CheckWritable(); err != nil {
		d.tree.Log.Warn("nothing is collected", log.Error(err))
		return nil
	}
	unlock, err := d.tree.Writer(ctx)
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	asked := make(map[uint64]bool)
	valid := func(owner uint64) bool {
		v, ok := asked[owner]
		if !ok {
			v = keep(owner)
			asked[owner] = v
		}
		return v
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	err = errors.Join(d.collectHostPorts(valid), d.collectEndpoints(a, valid), d.collectPodns(a, valid), d.collectLimits(valid), d.collectParents(a, valid), d.collectDevices(a), d.collectPolicies())
	err = errors.Join(err, d.collectNamespaces(ctx), d.syncLocked(ctx, a))
	if errors.Is(err, ErrNotLoaded) { // another process removed pins: the next Open makes them anew, empty
		d.tree.Log.Warn("sweep: pins are missing", log.Error(err))
		return nil
	}
	return err
}

// collectNamespaces removes the pins of network namespaces that are no more. That one is can only be told by its links: all of
// them have lost their device. A tree without links is left alone; so is one whose lock is held, or that a process lives in.
func (d *Datapath) collectNamespaces(ctx context.Context) error {
	trees, err := pintree.Names(filepath.Dir(d.tree.Paths.Dir))
	errs := []error{err}
	for _, ns := range trees {
		p := pintree.NewPaths(d.tree.RunDir, d.tree.Paths.BPFFS, ns)
		if ctx.Err() == nil && p.Dir != d.tree.Paths.Dir {
			errs = append(errs, removeIfDead(p))
		}
	}
	return errors.Join(errs...)
}

func removeIfDead(p pintree.Paths) error {
	f, err := os.OpenFile(p.Lock, os.O_RDWR, 0)
	switch {
	case err == nil:
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return nil // another process works in it: it lives
		}
	case !errors.Is(err, os.ErrNotExist): // its processes may have another run directory
		return err
	}
	pins, err := pintree.Names(p.Links())
	if err != nil || len(pins) == 0 {
		return err
	}
	devices := 0
	for _, name := range pins {
		if strings.HasPrefix(name, pintree.SockPrefix) { // a cgroup outlives a network namespace
			continue
		}
		devices++
		if lost, err := attach.Defunct(filepath.Join(p.Links(), name)); err != nil || !lost {
			return err
		}
	}
	if devices == 0 || p.HasProcesses() { // an uplink that is made anew, as by another driver, is no end of a node
		return nil
	}
	return removeTree(p)
}

// removeTree removes the pins of one namespace, programs first: without them no process takes the tree for a datapath.
func removeTree(p pintree.Paths) error {
	errs := []error{os.RemoveAll(p.Progs()), os.RemoveAll(p.Dir)}
	for _, path := range []string{p.State, p.Reserved, p.Look, p.Waiting, p.FQ, p.Lock} {
		errs = append(errs, file.Remove(path))
	}
	return errors.Join(errs...)
}
