// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// tables is the backend that writes netfilter rules.
type tables struct {
	netfilter.Tables
	Node
}

var _ Backend = tables{}

// Prepare has nothing to do: the tables have been found usable when they were
// chosen.
func (b tables) Prepare(context.Context, *cniskel.Args) (Job, error) { return tablesJob{b}, nil }

type tablesJob struct{ tables }

func (tablesJob) Close() error { return nil }

// CheckFree finds each address free: rules are per attachment.
func (tablesJob) CheckFree(context.Context, attachments.ID, []netip.Prefix) error { return nil }

// Apply writes the rules.
func (j tablesJob) Apply(ctx context.Context, ep loader.Endpoint, rb *rollback.Stack) error {
	rb.Push("masquerading", func(ctx context.Context) error { return j.DelMasq(ctx, ep.Ref, ep.Addrs, nil) })
	return netfilter.CNIError(j.AddMasq(ctx, ep.Ref, ep.Addrs), cnierr.CodeNoDatapath, "masquerade the pod")
}

// Remove takes the rules out. It needs neither the pod nor its device.
func (b tables) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, h held) error {
	err := b.DelMasq(ctx, ref, h.addrs, h.spare)
	if h.addrs == nil {
		err = backend.Unusable(a, b, err)
	}
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "stop masquerading the pod")
}

// Check compares the rules, the shared ones too.
func (b tables) Check(ctx context.Context, _ *cniskel.Args, ep loader.Endpoint) error {
	return netfilter.CNIError(b.CheckMasq(ctx, ep.Ref, ep.Addrs), cnierr.CodeNoDatapath, "masquerading differs")
}

// Sweep removes the rules of attachments of the network that neither the runtime
// lists nor a record names.
func (b tables) Sweep(ctx context.Context, _ *cniskel.Args, network string, valid map[attachments.ID]bool) error {
	records, err := b.List(network)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
	}
	keep := slices.Collect(maps.Keys(valid))
	for _, r := range records {
		keep = append(keep, r.ID)
	}
	err = b.SweepMasq(ctx, network, keep)
	if errors.Is(err, netfilter.ErrUnusable) {
		return nil
	}
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "sweep masquerading")
}

// Status has nothing to add: tables that were chosen can be used.
func (tables) Status(context.Context, *cniskel.Args) error { return nil }
