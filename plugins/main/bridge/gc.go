// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// gc detaches what this network's records name and the runtime no longer lists,
// then lets the IPAM plugin collect. It never stops at the first error, and
// never touches another network's attachments.
func (p *plugin) gc(ctx context.Context, a *cniplugin.Args) error {
	c, err := parseDel(a.StdinData)
	if err != nil {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, c.Name)
	if err != nil {
		return err
	}
	host, err := nl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	records, err := p.Records.List(c.Name)
	errs := []error{cnierr.Wrap(cnierr.CodeState, err, "list attachment records")}
	for _, rec := range records {
		if valid[rec.Ref] || !concernsUs(rec) {
			continue
		}
		call := *a
		// The recorded namespace is not passed on: its path may name another pod's by now.
		call.ContainerID, call.IfName, call.Netns = rec.ContainerID, rec.IfName, ""
		errs = append(errs, p.detach(ctx, &call, host, c, rec.Ref))
	}
	errs = append(errs, p.masq().GC(ctx, a, p.Records.List))
	if kind, err := ipam.Type(c.IPAM); err == nil && kind != "" {
		errs = append(errs, p.IPAM.GC(ctx, a, kind))
	}
	return errors.Join(errs...)
}

// concernsUs reports that the record has a section of this plugin, or that
// nobody can tell.
func concernsUs(rec *store.Record) bool {
	found, _ := rec.Section(Name, nil)
	return found || rec.Corrupt
}

// status says whether an ADD would work now.
func (p *plugin) status(ctx context.Context, a *cniplugin.Args) error {
	req, err := parse(a)
	if err != nil {
		return err
	}
	var errs []error
	if req.MACSpoofChk {
		errs = append(errs, cnierr.Wrap(cnierr.CodeUnavailable, p.NFT.Available(), "macspoofchk needs the nft program"))
	}
	if req.masquerade() {
		errs = append(errs, p.masq().Status(ctx, a, req.conf.Conf))
	}
	if req.ipamType != "" {
		errs = append(errs, p.IPAM.Status(ctx, a, req.ipamType))
	}
	return errors.Join(errs...)
}
