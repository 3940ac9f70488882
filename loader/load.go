// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
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
	if err := d.tree.Paths.Make(); err != nil {
		return err
	}
	if err := d.dropOldConntrack(); err != nil {
		return err
	}
	consts := randomConsts()
	consts.fibSrc, consts.coarse = report.yes(probeFIBSrc), report.yes(probeCoarse)
	if consts.netns, err = d.netnsCookie(ctx); err != nil {
		d.tree.Log.Warn("name the network namespace for programs", log.Error(err))
	}
	id := k.build()
	if err := d.loadPrograms(ctx, k, consts, d.tree.Paths.FreshDir(id)); err != nil {
		return d.refuse(k, report, err)
	}
	if err := d.fillAtLoad(k); err != nil {
		return err
	}
	if err := d.replaceAttached(ctx, d.tree.Paths.FreshDir(id)); err != nil {
		return err
	}
	if err := d.writeState(&state{
		Backend: backendEBPF, Reason: report.reason(), Build: id, Attach: d.modes(report), Probes: report, Config: k.status(),
	}); err != nil {
		return fmt.Errorf("write decision: %w", err)
	}
	if err := pintree.Commit(d.tree.Paths.FreshDir(id), d.tree.Paths.BuildDir(id)); err != nil {
		return err
	}
	// A bpffs outlives network namespaces. With each that ends without Unload, as those of "ip netns" do, stay its maps, and
	// its links to the root cgroup, which takes 64.
	if err := d.collectNamespaces(ctx); err != nil {
		d.tree.Log.Warn("pins of network namespaces that are gone", log.Error(err))
	}
	d.tree.Log.Info("datapath loaded", log.String("build", id), log.String("pins", d.tree.Paths.Dir), log.String("reason", report.reason()))
	return d.dropOtherBuilds(id)
}

// loadPrograms verifies the programs and pins the set in fresh, beside the one in force.
func (d *Datapath) loadPrograms(ctx context.Context, k constants, consts loadConsts, fresh string) error {
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove programs of an interrupted load: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("make directory of programs: %w", err)
	}
	if err := os.Symlink(consts.String(), filepath.Join(fresh, pintree.LoadConstsName)); err != nil {
		return fmt.Errorf("note constants: %w", err)
	}
	pinned, err := d.pin(ctx, k, consts, fresh, d.needed())
	if err == nil && pinned.NoSockLB != "" {
		d.tree.Log.Warn("the node's own processes will not reach host ports", log.String("error", pinned.NoSockLB))
		err = markNoSockLB(fresh)
	}
	return err
}

// pin has objects verified and pinned in dir, and what maps they lack made. The writers' lock is held.
func (d *Datapath) pin(ctx context.Context, k constants, consts loadConsts, dir string, objects []string) (loadapi.LoadResult, error) {
	sizes, err := mapSizes(d.tree.Config.MapSizes)
	if err != nil {
		return loadapi.LoadResult{}, err
	}
	return d.tree.Loader.Pin(ctx, loadapi.LoadRequest{
		Build: bpfgen.Build, Objects: objects, Dir: dir, Maps: d.tree.Paths.Maps(), Sizes: sizes, Constants: k.compiled(consts), Lock: d.tree.LockFile(),
	})
}

// markNoSockLB replaces what there is of the programs for sockets in dir by a mark.
func markNoSockLB(dir string) error {
	for _, h := range hook.Sockets() {
		if err := pintree.RemoveIfThere(filepath.Join(dir, h.Program)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(dir, pintree.NoSockLBDir), 0o700)
}

// fillAtLoad writes what comes from the configuration and so changes only with it.
func (d *Datapath) fillAtLoad(k constants) error {
	m, err := d.tree.Pinned(pintree.MapNoMasqCIDRs)
	if err != nil {
		return err
	}
	if err := endpoint.NewNoMasq(m).Replace(k.noMasq); err != nil {
		return fmt.Errorf("write nonMasqueradeCIDRs: %w", err)
	}
	if err := pintree.RemoveIfThere(d.tree.Paths.Reserved); err != nil { // the map may be new: what it holds is not known
		return err
	}
	ports, err := d.tree.HostPortMap()
	if err != nil {
		return err
	}
	return errors.Join(pintree.RemoveStaleList(d.tree.Paths.Waiting, ports.Len), pintree.RemoveIfThere(d.tree.Paths.Displaced))
}

// refuse turns the kernel's refusal to load into the decision that eBPF cannot run here, with the reason.
func (d *Datapath) refuse(k constants, report probes, cause error) error {
	if !errors.Is(cause, loadapi.ErrRefused) {
		return cause
	}
	report = append(report, Probe{Name: probeLoad, Answer: AnswerNo, Reason: cause.Error(), Consequence: noDatapath, Required: true})
	werr := d.writeState(&state{Backend: backendNone, Reason: cause.Error(), Asked: d.probeKey(k), Probes: report})
	return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, cause), werr)
}

// dropOtherBuilds removes the programs that nothing uses any more.
func (d *Datapath) dropOtherBuilds(id string) error {
	entries, err := pintree.Names(d.tree.Paths.Progs())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e != pintree.BuildPrefix+id {
			errs = append(errs, os.RemoveAll(d.tree.Paths.Progs()+"/"+e))
		}
	}
	return errors.Join(errs...)
}
