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
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
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
	err = errors.Join(
		ipam.Release(ctx, p.IPAM, a, section, old.IPAM),
		p.removeDevices(ctx, host, a, ref, old),
	)
	if err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the attachment record")
}

// removeDevices removes what the ADD made on the node: the pair, with which its
// addresses and routes go, and the masquerading.
func (p *plugin) removeDevices(ctx context.Context, host *rtnl.Handle, a *cniskel.Args, ref attachments.ID, old remembered) error {
	var errs []error
	if old.found {
		errs = append(errs, old.Remove(host))
	} else {
		errs = append(errs, veth.RemoveDerived(host, ref), p.removeNamed(host, a))
	}
	if !old.found || old.Masquerade != "" {
		errs = append(errs, p.masq().Stop(ctx, a, ref, old.Masquerade, old.Addrs))
	}
	return errors.Join(errs...)
}

// removeNamed deletes the pair of a pod that upstream's plugin attached, if
// its other end is no port of anything and no attachment of ours claims it.
func (p *plugin) removeNamed(host *rtnl.Handle, a *cniskel.Args) error {
	return veth.RemoveNamed(host, a, func(end rtnl.Link) bool {
		return end.MasterIndex == 0 && !veth.Claimed(p.Records.List, end)
	})
}
