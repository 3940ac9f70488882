// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
)

// gc withdraws the attachments of this network that the runtime no longer
// lists, then lets the datapath drop what no attachment explains. It never
// stops at the first error.
func (p *plugin) gc(ctx context.Context, a *cniplugin.Args) error {
	var conf cniconf.Common
	if err := cniconf.Load(a.StdinData, &conf); err != nil {
		return err
	}
	attachments, err := cniconf.ValidAttachments(a.StdinData)
	if err != nil {
		return err
	}
	valid := make(map[store.Ref]bool, len(attachments))
	for _, v := range attachments {
		valid[store.Ref{Network: conf.Name, ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	records, err := p.Records.List(conf.Name)
	errs := []error{cnierr.Wrap(cnierr.CodeState, err, "list attachment records")}
	for _, rec := range records {
		if !valid[rec.Ref] {
			errs = append(errs, p.withdraw(ctx, a, rec.Ref, p.held(rec.Ref)))
		}
	}
	errs = append(errs, p.sweep(ctx, a, valid))
	return errors.Join(errs...)
}

// sweep removes leftovers from the maps. An owner is kept when the runtime
// lists it, when a record of any network names it, or when its device is there
// still: without a record nobody can tell whose network it is.
func (p *plugin) sweep(ctx context.Context, a *cniplugin.Args, valid map[store.Ref]bool) error {
	dp, err := p.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) || errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return openError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	endpoints, err := dp.Endpoints(ctx)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, unlessGone(err), "list endpoints")
	}
	keep := make(map[uint64]bool, len(valid)+len(endpoints))
	for ref := range valid {
		keep[ref.Owner()] = true
	}
	for _, ep := range endpoints {
		if ep.HostIfName != "" {
			keep[ep.Owner] = true
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, unlessGone(dp.GC(ctx, p.orRecorded(keep))), "sweep the datapath")
}

// orRecorded adds the owners that have a record. The records are read when the
// function is first called: the datapath then holds its writers' lock, and an
// ADD has written its record before it took that lock.
func (p *plugin) orRecorded(keep map[uint64]bool) func(owner uint64) bool {
	var read, unreadable bool
	return func(owner uint64) bool {
		if !read {
			read = true
			records, err := p.Records.List("")
			unreadable = err != nil
			for _, rec := range records {
				keep[rec.Owner()] = true
			}
		}
		return unreadable || keep[owner]
	}
}
