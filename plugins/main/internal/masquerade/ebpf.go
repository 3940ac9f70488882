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
)

// ebpf is the back end that turns on the datapath's masquerade feature.
type ebpf struct{ Node }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backendEBPF }

// Prepare opens the datapath, which loads it if need be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args) (Job, error) {
	dp, err := b.Open(ctx, a)
	if err != nil {
		return nil, openError(err, cnierr.CodeNoDatapath)
	}
	return ebpfJob{dp}, nil
}

type ebpfJob struct{ dp Datapath }

func (j ebpfJob) Close() error { return j.dp.Close() }

// Do hands the pod to the datapath.
func (j ebpfJob) Do(ctx context.Context, ep loader.Endpoint, undos *rollback.Stack) error {
	undos.Push("masquerading", func(ctx context.Context) error {
		return j.dp.Disable(ctx, ep.Ref.Owner(), loader.FeatureMasquerade)
	})
	return cnierr.Wrap(cnierr.CodeKernel, j.dp.Enable(ctx, ep, loader.FeatureMasquerade), "masquerade the pod")
}

// Remove takes the pod out of the datapath. Where nothing is loaded, or
// somebody has removed the maps, there is nothing to take out; a DEL that failed
// for it would block the plugins before it in the chain.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, _, _ []netip.Prefix) error {
	dp, err := b.OpenExisting(ctx, a)
	switch {
	case errors.Is(err, loader.ErrNotLoaded):
		return nil
	case errors.Is(err, loader.ErrUnavailable):
		a.Log.Warn("the datapath cannot be looked at", log.Error(err))
		return nil
	case err != nil:
		return openError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	if err := dp.Disable(ctx, ref.Owner(), loader.FeatureMasquerade); !errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeKernel, err, "stop masquerading the pod")
	}
	return nil
}

// Check compares the endpoint and its programs.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint) error {
	dp, err := b.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.New(cnierr.CodeCheck, "the pod is not masqueraded: no datapath is loaded", "")
	}
	if err != nil {
		return openError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	return cnierr.Wrap(cnierr.CodeCheck, dp.CheckEndpoint(ctx, ep, loader.FeatureMasquerade), "masquerading differs")
}

// Sweep does nothing: the chained plugins sweep the whole datapath.
func (ebpf) Sweep(context.Context, string, []attachments.Ref) error { return nil }

// Status opens the datapath as an ADD would, which loads it if need be.
func (b ebpf) Status(ctx context.Context, a *cniskel.Args) error {
	dp, err := b.Open(ctx, a)
	if err != nil {
		return openError(err, cnierr.CodeUnavailable)
	}
	return cnierr.Wrap(cnierr.CodeUnavailable, dp.Close(), "ipMasq: close the datapath")
}

// openError gives an error of Node's functions its CNI code: unavailable when
// the back end cannot run on this node, its own when it has one (a mistake in
// the node's configuration).
func openError(err error, unavailable uint) error {
	var coded *cnierr.Error
	switch {
	case errors.Is(err, loader.ErrUnavailable):
		return cnierr.Wrap(unavailable, err, "ipMasq: the ebpf back end cannot run on this node")
	case errors.As(err, &coded):
		return err
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "ipMasq: open the datapath")
}
