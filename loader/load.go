// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// load brings this build of the programs into force: for the first time, or in place of another build. The writers' lock is
// held. Every step can be repeated; the last one that counts is the rename that commits (docs/dev/design/loader/loading.md).
func (d *Datapath) load(ctx context.Context, k programs.Constants) error {
	report, err := programs.Decide(ctx, d.tree, k)
	if err != nil {
		return err
	}
	if err := d.tree.Paths.Make(); err != nil {
		return err
	}
	id := k.Build()
	fresh := d.tree.Paths.FreshDir(id)
	if report, err = programs.LoadFresh(ctx, d.tree, k, report, fresh); err != nil {
		return err
	}
	if err := d.fillAtLoad(k.NoMasq); err != nil {
		return err
	}
	// Before the programs: they take a pod whose device is not tracked for one that is gone.
	if err := d.trackDevices(); err != nil {
		return err
	}
	if err := errors.Join(d.linkPodnsOwners(), d.linkLimitOwners()); err != nil {
		return err
	}
	if err := d.replaceAttached(ctx, fresh); err != nil {
		return err
	}
	if err := programs.NoteDecision(d.tree, k, report); err != nil {
		return err
	}
	if err := pintree.Commit(fresh, d.tree.Paths.BuildDir(id)); err != nil {
		return err
	}
	// A bpffs outlives network namespaces. With each that ends without Unload, as those of "ip netns" do, stay its maps, and
	// its links to the root cgroup, which takes 64.
	if err := d.collectNamespaces(ctx); err != nil {
		d.tree.Log.Warn("pins of network namespaces that are gone", log.Error(err))
	}
	d.tree.Log.Info("datapath loaded", log.String("build", id), log.String("pins", d.tree.Paths.Dir), log.String("reason", report.Reason()))
	return programs.DropOtherBuilds(d.tree, id)
}

// fillAtLoad writes what comes from the configuration and so changes only with it.
func (d *Datapath) fillAtLoad(noMasq []netip.Prefix) error {
	m, err := d.tree.Pinned(pintree.MapNoMasqCIDRs)
	if err != nil {
		return err
	}
	if err := endpoint.NewNoMasq(m).Replace(noMasq); err != nil {
		return fmt.Errorf("write nonMasqueradeCIDRs: %w", err)
	}
	// The maps may be new: what they hold is not known.
	if err := errors.Join(file.Remove(d.tree.Paths.Reserved), file.Remove(d.tree.Paths.Look)); err != nil {
		return err
	}
	return d.dropStaleWaitlist()
}
