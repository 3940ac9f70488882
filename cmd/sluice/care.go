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

// care looks after a node.
type care interface {
	// Facts is what the doctor looks at.
	Facts(ctx context.Context) (*doctor.Facts, error)
	// Leftovers finds what is left of attachments that are gone. The error names
	// what could not be looked at; the report then misses something living.
	Leftovers(ctx context.Context) (orphans.Report, error)
	// Sweep removes items of a report.
	Sweep(ctx context.Context, items []orphans.Item) error
	// Elsewhere says that the tool runs with other mounts than the node's
	// processes, and so does not see where pods are.
	Elsewhere() bool
}

var _ care = realNode{}

func (realNode) Facts(ctx context.Context) (*doctor.Facts, error) { return doctor.Gather(ctx) }

func (realNode) Leftovers(ctx context.Context) (orphans.Report, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return orphans.Report{}, err
	}
	var maps orphans.Maps
	dp, err := doctor.Open(ctx, conf)
	switch {
	case err == nil:
		defer dp.Close()
		maps = dp
	case !errors.Is(err, loader.ErrNotLoaded):
		return orphans.Report{}, err
	}
	scene, err := orphans.See(ctx, maps, doctor.Tables(conf), attachments.Open(attachments.DefaultDir), orphans.DefaultPlaces())
	return orphans.Find(scene), err
}

func (realNode) Sweep(ctx context.Context, items []orphans.Item) error {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return err
	}
	broom := orphans.Broom{Tables: doctor.Tables(conf), Records: attachments.Open(attachments.DefaultDir)}
	dp, err := doctor.Open(ctx, conf)
	switch {
	case err == nil:
		defer dp.Close()
		broom.Collect = dp.GC
	case !errors.Is(err, loader.ErrNotLoaded):
		return err
	}
	return broom.Remove(ctx, items)
}

func (realNode) Elsewhere() bool { return loader.OwnMounts() }
