// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// nodeOps inspects a node and cleans it up.
type nodeOps interface {
	// Facts is what the doctor looks at.
	Facts(ctx context.Context) (*doctor.Facts, error)
	// Leftovers finds what is left of attachments that are gone. The error names
	// what could not be looked at; the report then misses something living.
	Leftovers(ctx context.Context) (orphans.Report, error)
	// Cleanup removes items of a report.
	Cleanup(ctx context.Context, items []orphans.Item) error
	// InForeignMounts says that the tool runs with other mounts than the node's
	// processes, and so does not see where pods are.
	InForeignMounts() bool
}

var _ nodeOps = realNode{}

func (realNode) Facts(ctx context.Context) (*doctor.Facts, error) { return doctor.Gather(ctx) }

func (realNode) Leftovers(ctx context.Context) (orphans.Report, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return orphans.Report{}, err
	}
	var maps loader.Interface
	dp, err := doctor.Open(ctx, conf)
	switch {
	case err == nil:
		defer dp.Close()
		maps = dp
	case !errors.Is(err, loader.ErrNotLoaded):
		return orphans.Report{}, err
	}
	_, report, err := orphans.Search(func() (*orphans.Inventory, error) {
		return orphans.Scan(ctx, maps, doctor.Tables(conf), attachments.Open(attachments.DefaultDir), orphans.DefaultPlaces())
	})
	return report, err
}

func (realNode) Cleanup(ctx context.Context, items []orphans.Item) error {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return err
	}
	remover := orphans.Remover{Tables: doctor.Tables(conf), Records: attachments.Open(attachments.DefaultDir)}
	dp, err := doctor.Open(ctx, conf)
	switch {
	case err == nil:
		defer dp.Close()
		remover.Collect = dp.GC
	case !errors.Is(err, loader.ErrNotLoaded):
		return err
	}
	return remover.Remove(ctx, items)
}

func (realNode) InForeignMounts() bool { return loader.InPrivateMountNS() }
