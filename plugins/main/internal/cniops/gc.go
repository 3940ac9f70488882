// SPDX-License-Identifier: Apache-2.0

package cniops

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Collector is a main plugin's GC: gc.Collector, and the IPAM plugin's turn.
type Collector struct {
	// Section and List are those of gc.Collector.
	Section string
	List    func(network string) ([]*attachments.Record, error)
	IPAM    ipam.Plugin
	// Detach removes one attachment and its record, see gc.Collector.
	Detach func(ctx context.Context, call *cniskel.Args, c DelConf, rec *attachments.Record) error
	// Sweep is that of gc.Collector. It runs after the IPAM plugin's GC.
	Sweep func(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error
}

// GC detaches what the network's records name and the runtime no longer lists,
// then lets the IPAM plugin collect, then sweeps.
func (g Collector) GC(ctx context.Context, a *cniskel.Args) error {
	c, err := ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	return gc.Collector{
		Section: g.Section, List: g.List,
		Detach: func(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
			return g.Detach(ctx, call, c, rec)
		},
		Sweep: func(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error {
			var errs []error
			if kind, err := ipam.Type(c.IPAM); err == nil && kind != "" {
				errs = append(errs, g.IPAM.GC(ctx, a, kind))
			}
			if g.Sweep != nil {
				errs = append(errs, g.Sweep(ctx, a, network, valid))
			}
			return errors.Join(errs...)
		},
	}.GC(ctx, a)
}
