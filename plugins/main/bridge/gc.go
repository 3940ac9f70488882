// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// gc detaches what the runtime no longer lists, and removes masquerading that
// no attachment explains.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	c, err := parseDel(a.StdinData)
	if err != nil {
		return err
	}
	host, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	return cniops.Collector{
		Section: Name, List: p.Records.List, IPAM: p.IPAM,
		Detach: func(ctx context.Context, call *cniskel.Args, _ cniops.DelConf, rec *attachments.Record) error {
			return p.detach(ctx, call, host, c, rec.ID)
		},
		Sweep: p.masq().Sweep,
	}.GC(ctx, a)
}

// status says whether an ADD would work now.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a)
	if err != nil {
		return err
	}
	errs := []error{req.bridgeStatus()}
	if req.MACSpoofChk {
		errs = append(errs, p.spoofStatus(ctx, a))
	}
	if req.masquerade() {
		errs = append(errs, p.masq().Status(ctx, a, req.conf.Conf))
	}
	if req.ipamType != "" {
		errs = append(errs, p.IPAM.Status(ctx, a, req.ipamType))
	}
	return errors.Join(errs...)
}

// bridgeStatus looks for what ADD would refuse about the bridge's name. Only the name
// of a VLAN gateway depends on the kernel's state.
func (r *request) bridgeStatus() error {
	if r.VLAN == 0 || !r.IsGateway {
		return nil
	}
	host, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	br, err := host.LinkByName(r.Bridge)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	return r.useBridge(br)
}
