// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/meta/internal/dpchain"
)

// ebpf is the back end that turns on the datapath's admit feature.
type ebpf struct{ Deps }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backendEBPF }

// Prepare finds the pod's device and opens the datapath, which loads it if need
// be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args, w want) (Job, error) {
	ep, err := b.resolve(ctx, a, w)
	if err != nil {
		return nil, resolveError(err, a.IfName, cnierr.CodeKernel)
	}
	dp, err := b.Open(ctx, a)
	if err != nil {
		return nil, dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	b.advise(ctx, a)
	return &ebpfJob{dp, ep}, nil
}

// advise logs what keeps admission from having an effect: it is a mark, which
// only a rule of the administrator can make a chain accept whose policy is DROP.
func (b ebpf) advise(ctx context.Context, a *cniskel.Args) {
	if b.Netfilter == nil {
		return
	}
	node, err := b.Netfilter(a)
	if err != nil {
		return // said where the back end was chosen
	}
	for _, text := range node.Advice(ctx) {
		a.Log.Warn(text)
	}
}

func (b ebpf) resolve(ctx context.Context, a *cniskel.Args, w want) (loader.Endpoint, error) {
	ep, err := b.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		return ep, err
	}
	ep.Ref, ep.Addrs, ep.Policy = w.ref, w.addrs, w.conf.policy
	if ep.HostIfindex != 0 {
		return ep, nil
	}
	var subnets []netip.Prefix
	for _, p := range w.addrs {
		subnets = append(subnets, p.Masked())
	}
	inside, ok := w.conf.policy.WithoutBridge(subnets, w.gateways())
	if !ok {
		return ep, cnierr.Unsupported("ingressPolicy", w.conf.IngressPolicy, a.IfName+" has no bridge on this node: use isolated, or rules")
	}
	ep.Policy = inside
	return ep, nil
}

// resolveError gives an error of resolve its code, unless it has one.
func resolveError(err error, ifname string, code uint) error {
	var coded *cnierr.Error
	if errors.As(err, &coded) {
		return err
	}
	return dpchain.ResolveError(err, ifname, code)
}

type ebpfJob struct {
	dp Datapath
	ep loader.Endpoint
}

func (j *ebpfJob) Close() error { return j.dp.Close() }

// Describe adds nothing: the owner is enough.
func (*ebpfJob) Describe(*section) {}

// Do turns the feature on.
func (j *ebpfJob) Do(ctx context.Context, undos *rollback.Stack) error {
	undos.Push("admit feature", func(ctx context.Context) error {
		return j.dp.Disable(ctx, j.ep.Ref.Owner(), loader.FeatureAdmit)
	})
	return cnierr.Wrap(cnierr.CodeKernel, j.dp.Enable(ctx, j.ep, loader.FeatureAdmit), "admit %s", j.ep.Ref.IfName)
}

// Remove turns the feature off.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, s *section) error {
	dp, err := b.OpenExisting(ctx, a)
	switch {
	case errors.Is(err, loader.ErrNotLoaded):
		return nil
	case errors.Is(err, loader.ErrUnavailable) && s == nil:
		return nil // no record of ours, on a node that cannot hold anything of ours
	case err != nil:
		return dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	err = unlessGone(dp.Disable(ctx, ref.Owner(), loader.FeatureAdmit))
	return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw the admission of %s", ref.IfName)
}

// unlessGone takes a datapath whose maps somebody has removed for one that was
// never loaded: it holds nothing of ours.
func unlessGone(err error) error {
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	return err
}

// Check compares the endpoint, its addresses and its programs.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, w want) error {
	ep, err := b.resolve(ctx, a, w)
	if err != nil {
		return resolveError(err, a.IfName, cnierr.CodeCheck)
	}
	dp, err := b.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeCheck, err, "the pod is not admitted")
	}
	if err != nil {
		return dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	return cnierr.Wrap(cnierr.CodeCheck, dp.CheckEndpoint(ctx, ep, loader.FeatureAdmit),
		"the admission of %s differs from the configuration", a.IfName)
}

// Sweep lets the datapath drop the entries of unknown owners.
func (b ebpf) Sweep(ctx context.Context, a *cniskel.Args, _ string, valid map[attachments.Ref]bool) error {
	return dpchain.Sweeper[Datapath]{List: b.Records.List, Open: b.OpenExisting}.Sweep(ctx, a, valid)
}

// Status opens the datapath as ADD would, which loads it if need be.
func (b ebpf) Status(ctx context.Context, a *cniskel.Args) error {
	dp, err := b.Open(ctx, a)
	if err != nil {
		return dpchain.OpenError(err, cnierr.CodeUnavailable)
	}
	b.advise(ctx, a)
	return dp.Close()
}
