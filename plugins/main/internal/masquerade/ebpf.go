// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// ebpf is the backend that turns on the datapath's masquerade feature.
type ebpf struct{ Node }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backend.EBPF }

func (b ebpf) opener() Opener {
	o := b.Opener
	o.Prefix = prefix
	return o
}

// Prepare opens the datapath, which loads it if need be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args) (Job, error) {
	dp, err := b.opener().Load(ctx, a)
	if err != nil {
		return nil, err
	}
	return ebpfJob{dp, b}, nil
}

type ebpfJob struct {
	dp loader.Interface
	b  ebpf
}

func (j ebpfJob) Close() error { return j.dp.Close() }

// CheckFree asks the datapath.
func (j ebpfJob) CheckFree(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	return backend.EnableError(j.dp.CheckFree(ctx, ref.Owner(), addrs), j.b.List, "look whose the address is")
}

// Apply hands the pod to the datapath.
func (j ebpfJob) Apply(ctx context.Context, ep loader.Endpoint, rb *rollback.Stack) error {
	rb.Push("masquerading", func(ctx context.Context) error {
		return j.dp.Disable(ctx, ep.Ref.Owner(), loader.FeatureMasquerade, loader.HeldBy(ep.Addrs))
	})
	return backend.EnableError(j.dp.Enable(ctx, ep, loader.FeatureMasquerade), j.b.List, "masquerade the pod")
}

// Remove takes the pod out of the datapath. There is nothing to take out where
// the datapath is not loaded, where another process has removed its maps, or
// where eBPF cannot run. A DEL that failed for one of these would block the
// plugins before it in the chain.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, h held) error {
	err := b.opener().Existing(ctx, a, func(dp loader.Interface) error {
		err := backend.IgnoreNotLoaded(dp.Disable(ctx, ref.Owner(), loader.FeatureMasquerade, h.inDatapath()))
		return cnierr.Wrap(cnierr.CodeKernel, err, "stop masquerading the pod")
	})
	if errors.Is(err, loader.ErrUnavailable) {
		a.Log.Warn("the datapath cannot be looked at", log.Error(err))
		return nil
	}
	return err
}

// Check compares the endpoint and its programs.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint) error {
	return b.opener().Check(ctx, a, "the pod is not masqueraded", func(dp loader.Interface) error {
		return cnierr.Wrap(cnierr.CodeCheck, dp.CheckEndpoint(ctx, ep, loader.FeatureMasquerade), "masquerading differs")
	})
}

// Sweep lets the datapath remove the entries of unknown owners. The list may have
// no chained plugin that would.
func (b ebpf) Sweep(ctx context.Context, a *cniskel.Args, _ string, valid map[attachments.ID]bool) error {
	return b.opener().Sweep(ctx, a, b.List, valid)
}

// Status opens the datapath as an ADD would, which loads it if need be.
func (b ebpf) Status(ctx context.Context, a *cniskel.Args) error { return b.opener().Status(ctx, a) }
