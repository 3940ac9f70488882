// SPDX-License-Identifier: Apache-2.0

package cniops

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Collector is a main plugin's GC.
type Collector struct {
	// Section is the plugin's in an attachment record.
	Section string
	// List returns the attachment records of a network.
	List func(network string) ([]*attachments.Record, error)
	IPAM ipam.Plugin
	// Detach removes one attachment and its record. The call has no namespace:
	// the recorded path may name another pod's by now.
	Detach func(ctx context.Context, call *cniskel.Args, c DelConf, rec *attachments.Record) error
}

// Run detaches what the network's records name and the runtime no longer lists,
// then lets the IPAM plugin collect. It never stops at the first error, and
// never touches another network's attachments.
func (g Collector) Run(ctx context.Context, a *cniskel.Args) error {
	c, err := ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, c.Name)
	if err != nil {
		return err
	}
	records, err := g.List(c.Name)
	errs := []error{cnierr.Wrap(cnierr.CodeState, err, "list attachment records")}
	for _, rec := range records {
		if valid[rec.Ref] || !g.concerns(rec) {
			continue
		}
		call := *a
		call.ContainerID, call.IfName, call.Netns = rec.ContainerID, rec.IfName, ""
		errs = append(errs, g.Detach(ctx, &call, c, rec))
	}
	if kind, err := ipam.Type(c.IPAM); err == nil && kind != "" {
		errs = append(errs, g.IPAM.GC(ctx, a, kind))
	}
	return errors.Join(errs...)
}

// concerns reports that the record has the plugin's section, or that nobody can
// tell.
func (g Collector) concerns(rec *attachments.Record) bool {
	found, _ := rec.Section(g.Section, nil)
	return found || rec.Corrupt
}
