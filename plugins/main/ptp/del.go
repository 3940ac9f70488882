// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// del detaches the pod. It needs no more than the attachment's name: what ADD
// made is in the record, and what has no record is found by derived names.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := cniops.ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	return p.detach(ctx, a, a.Ref(c.Name), c.IPAM)
}

// gc detaches what the runtime no longer lists, and removes masquerading that
// no attachment explains.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return cniops.Collector{
		Section: Name, List: p.Records.List, IPAM: p.IPAM,
		Detach: func(ctx context.Context, call *cniskel.Args, c cniops.DelConf, rec *attachments.Record) error {
			return p.detach(ctx, call, rec.ID, c.IPAM)
		},
		Sweep: p.masq().Sweep,
	}.GC(ctx, a)
}

// detach removes everything of one attachment and then its record. It goes on
// after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniskel.Args, ref attachments.ID, section json.RawMessage) error {
	host, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	old := p.loadSection(ref)
	return p.record(ref).Detach(ctx, p.IPAM, a, section, old.IPAM, func() error { return p.removeDevices(ctx, host, a, ref, old) })
}

// removeDevices removes what the ADD made on the node: the pair, with which its
// addresses and routes go, and the masquerading.
func (p *plugin) removeDevices(ctx context.Context, host *rtnl.Handle, a *cniskel.Args, ref attachments.ID, old remembered) error {
	// The pair of a pod that upstream's plugin attached has its other end on nothing.
	ours := func(end rtnl.Link) bool { return end.MasterIndex == 0 }
	errs := []error{old.RemovePair(host, a, ref, old.found, p.Records.List, ours)}
	if !old.found || old.Masquerade != "" {
		errs = append(errs, p.masq().Stop(ctx, a, ref, old.Masquerade, old.Addrs))
	}
	return errors.Join(errs...)
}
