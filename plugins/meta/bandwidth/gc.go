// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
)

// gc withdraws the attachments of this network that the runtime no longer lists,
// lets the datapath drop what no attachment explains, and removes intermediate
// devices whose pod has gone, upstream's plugin's too.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return gc.Collector{
		List: p.Records.List,
		Detach: func(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
			return p.withdraw(ctx, call, rec.ID)
		},
		Sweep: p.sweep,
	}.GC(ctx, a)
}

func (p *plugin) sweep(ctx context.Context, a *cniskel.Args, _ string, valid map[attachments.ID]bool) error {
	return errors.Join(
		p.Opener.Sweep(ctx, a, p.Records.List, valid),
		p.sweepIFBs(valid))
}

// sweepIFBs removes the devices that bear one of the names and serve no pod: no
// attachment that is valid or recorded has that name, and no device redirects to
// it. The filter that did went with the pod's device.
func (p *plugin) sweepIFBs(valid map[attachments.ID]bool) error {
	h, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open netlink")
	}
	defer h.Close()
	links, err := h.Links()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list devices")
	}
	var found []rtnl.Link
	for _, l := range links {
		if l.Kind == rtnl.KindIFB && isIFBName(l.Name) {
			found = append(found, l)
		}
	}
	if len(found) == 0 {
		return nil
	}
	keep, err := p.keptIFBs(valid)
	if err != nil {
		return err
	}
	used, err := redirectedTo(h, links)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list redirections")
	}
	var errs []error
	for _, l := range found {
		if !keep[l.Name] && !used[l.Index] {
			errs = append(errs, delIFB(side{h: h}, l.Name))
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(errs...), "remove intermediate devices")
}

// keptIFBs are the names of attachments that the runtime lists or a record names.
func (p *plugin) keptIFBs(valid map[attachments.ID]bool) (map[string]bool, error) {
	keep, err := p.claimedIFBs(attachments.ID{})
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
	}
	for ref := range valid {
		keep[referenceIFB(ref)], keep[ownIFB(ref)] = true, true
	}
	return keep, nil
}

// redirectedTo are the devices that filters of others send packets to.
func redirectedTo(h *rtnl.Handle, links []rtnl.Link) (map[int]bool, error) {
	used := make(map[int]bool)
	var errs []error
	for _, l := range links {
		if l.Kind == rtnl.KindIFB {
			continue
		}
		for _, hook := range []uint32{rtnl.HookIngress, rtnl.HookEgress} {
			filters, err := h.Filters(l.Index, hook)
			errs = append(errs, err)
			for _, f := range filters {
				used[f.RedirectTo] = true
			}
		}
	}
	return used, errors.Join(errs...)
}
