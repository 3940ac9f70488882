// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// load brings this build of the programs into force: for the first time, or in place of another build. The writers' lock is
// held. Every step can be repeated; the last one that counts is the rename that commits (docs/design/loader/loading.md).
func (d *Datapath) load(ctx context.Context, k constants) error {
	report, err := d.decide(ctx, k)
	if err != nil {
		return err
	}
	if err := d.paths.make(); err != nil {
		return err
	}
	if err := d.dropOldConntrack(); err != nil {
		return err
	}
	consts := randomConsts()
	consts.fibSrc, consts.coarse = report.yes(probeFIBSrc), report.yes(probeCoarse)
	if consts.netns, err = d.netnsCookie(ctx); err != nil {
		d.log.Warn("name the network namespace for programs", log.Error(err))
	}
	id := k.build()
	if err := d.loadPrograms(ctx, k, consts, d.paths.freshDir(id)); err != nil {
		return d.refuse(k, report, err)
	}
	if err := d.fillAtLoad(k); err != nil {
		return err
	}
	if err := d.replaceAttached(ctx, d.paths.freshDir(id)); err != nil {
		return err
	}
	if err := d.paths.writeState(&state{
		Backend: backendEBPF, Reason: report.reason(), Build: id, Attach: d.modes(report), Probes: report, Config: k.status(),
	}); err != nil {
		return fmt.Errorf("write decision: %w", err)
	}
	if err := commit(d.paths.freshDir(id), d.paths.buildDir(id)); err != nil {
		return err
	}
	// A bpffs outlives network namespaces. With each that ends without Unload, as those of "ip netns" do, stay its maps, and
	// its links to the root cgroup, which takes 64.
	if err := d.collectNamespaces(ctx); err != nil {
		d.log.Warn("pins of network namespaces that are gone", log.Error(err))
	}
	d.log.Info("datapath loaded", log.String("build", id), log.String("pins", d.paths.dir), log.String("reason", report.reason()))
	return d.dropOtherBuilds(id)
}

// commit makes the fresh set of programs the one in force. What is left of a set of the same name, some of whose pins somebody
// removed, goes first: a directory cannot be renamed over one that is not empty.
func commit(fresh, committed string) error {
	if err := os.RemoveAll(committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	if err := os.Rename(fresh, committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	return nil
}

// loadPrograms verifies the programs and pins the set in fresh, beside the one in force.
func (d *Datapath) loadPrograms(ctx context.Context, k constants, consts loadConsts, fresh string) error {
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove programs of an interrupted load: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("make directory of programs: %w", err)
	}
	if err := os.Symlink(consts.String(), filepath.Join(fresh, loadConstsName)); err != nil {
		return fmt.Errorf("note constants: %w", err)
	}
	pinned, err := d.pin(ctx, k, consts, fresh, d.needed())
	if err == nil && pinned.NoSockLB != "" {
		d.log.Warn("the node's own processes will not reach host ports", log.String("error", pinned.NoSockLB))
		err = markNoSockLB(fresh)
	}
	return err
}

// pin has objects verified and pinned in dir, and what maps they lack made. The writers' lock is held.
func (d *Datapath) pin(ctx context.Context, k constants, consts loadConsts, dir string, objects []string) (loadapi.LoadResult, error) {
	sizes, err := mapSizes(d.opts.Config.MapSizes)
	if err != nil {
		return loadapi.LoadResult{}, err
	}
	return d.opts.Loader.Pin(ctx, loadapi.LoadRequest{
		Build: bpfgen.Build, Objects: objects, Dir: dir, Maps: d.paths.maps(), Sizes: sizes, Constants: k.compiled(consts), Lock: d.held,
	})
}

// markNoSockLB replaces what there is of the programs for sockets in dir by a mark.
func markNoSockLB(dir string) error {
	for _, h := range sockHooks() {
		if err := removeIfThere(filepath.Join(dir, h.program)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(dir, noSockLBDir), 0o700)
}

// fillAtLoad writes what comes from the configuration and so changes only with it.
func (d *Datapath) fillAtLoad(k constants) error {
	m, err := d.pinned(mapNoMasqCIDRs)
	if err != nil {
		return err
	}
	if err := endpoint.NewNoMasq(m).Replace(k.noMasq); err != nil {
		return fmt.Errorf("write nonMasqueradeCIDRs: %w", err)
	}
	if err := removeIfThere(d.paths.reserved); err != nil { // the map may be new: what it holds is not known
		return err
	}
	ports, err := d.hostPortMap()
	if err != nil {
		return err
	}
	return errors.Join(removeStaleList(d.paths.waiting, ports.Len), removeIfThere(d.paths.displaced))
}

// refuse turns the kernel's refusal to load into the decision that eBPF cannot run here, with the reason.
func (d *Datapath) refuse(k constants, report probes, cause error) error {
	if !errors.Is(cause, loadapi.ErrRefused) {
		return cause
	}
	report = append(report, Probe{Name: probeLoad, Answer: AnswerNo, Reason: cause.Error(), Consequence: noDatapath, Required: true})
	werr := d.paths.writeState(&state{Backend: backendNone, Reason: cause.Error(), Asked: d.probeKey(k), Probes: report})
	return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, cause), werr)
}

// dropOtherBuilds removes the programs that nothing uses any more.
func (d *Datapath) dropOtherBuilds(id string) error {
	entries, err := names(d.paths.progs())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e != buildPrefix+id {
			errs = append(errs, os.RemoveAll(d.paths.progs()+"/"+e))
		}
	}
	return errors.Join(errs...)
}

// committedDir returns where the programs in force are pinned.
func (d *Datapath) committedDir() (string, error) {
	id, ok := d.paths.committed()
	if !ok {
		return "", fmt.Errorf("%w: no programs at %s", ErrNotLoaded, d.paths.progs())
	}
	return d.paths.buildDir(id), nil
}

// programAt opens a pinned program. The caller must Close it.
func programAt(dir, name string) (*bpfsys.Program, error) {
	p, err := bpfsys.OpenProgram(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no program %s", ErrNotLoaded, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", name, err)
	}
	return p, nil
}
