// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// ebpf is the backend that turns on the datapath's admit feature.
type ebpf struct{ Deps }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backend.EBPF }

// Prepare finds the pod's device and opens the datapath, which loads it if need
// be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error) {
	ep, err := b.resolve(ctx, a, r)
	if err != nil {
		return nil, backend.ResolveError(err, a.IfName, cnierr.CodeKernel)
	}
	dp, err := b.Load(ctx, a)
	if err != nil {
		return nil, err
	}
	job := &ebpfJob{dp, ep, b.Records.List}
	err = job.checkFree(ctx)
	if err == nil {
		err = b.admin(a, r, func(node Netfilter, f netfilter.Firewall) error {
			return netfilter.CNIError(node.CallAdmin(ctx, f), cnierr.CodeNoDatapath, "iptablesAdminChainName %q: iptables cannot call the chain", f.AdminChain)
		})
	}
	if err != nil {
		return nil, errors.Join(err, dp.Close())
	}
	if ep.HostIfindex != 0 {
		b.admitMarked(ctx, a, devicesOf(ep))
	}
	return job, nil
}

// devicesOf names the devices by which packets of such pods come in: the bridge, or "veth+" for all pods on links of their own. One name
// for each pod would be a rule for each. Devices of another kind have none: only answers are admitted then.
func devicesOf(ep loader.Endpoint) string {
	const veth = "veth" // what upstream's ptp and ours begin the names of host veths with
	switch {
	case ep.RouteIfindex != ep.HostIfindex && ep.RouteIfindex != 0:
		return ep.RouteIfName
	case strings.HasPrefix(ep.RouteIfName, veth):
		return veth + "+"
	}
	return ""
}

// admitMarked lets the mark pass where the FORWARD policy is DROP: admission by eBPF
// is nothing else. It logs what only the administrator can do for that. from is the
// device by which the pod's packets come in, empty for all devices of pods before.
func (b ebpf) admitMarked(ctx context.Context, a *cniskel.Args, from string) {
	if b.Netfilter == nil {
		return
	}
	node, err := b.Netfilter(a)
	if err != nil {
		return // said where the backend was chosen
	}
	for _, text := range node.Admit(ctx, from) {
		a.Log.Warn(text)
	}
}

// admin calls do if the configuration names an admin chain. Admission by eBPF leaves
// the FORWARD hook in its place, so the chain's rules hold there for the first packet
// of every connection and for one every relearnSeconds.
func (b ebpf) admin(a *cniskel.Args, r request, do func(Netfilter, netfilter.Firewall) error) error {
	if r.conf.IptablesAdminChainName == "" || b.Netfilter == nil { // choose has refused the latter
		return nil
	}
	node, err := b.Netfilter(a)
	if err != nil {
		return err
	}
	return do(node, netfilter.Firewall{Ref: r.ref, Addrs: r.addrs, AdminChain: r.conf.IptablesAdminChainName})
}

func (b ebpf) resolve(ctx context.Context, a *cniskel.Args, r request) (loader.Endpoint, error) {
	ep, err := b.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		return ep, err
	}
	ep.Ref, ep.Addrs, ep.Policy, ep.NetworkPolicy = r.ref, r.addrs, r.conf.policy, r.pod
	if ep.HostIfindex != 0 {
		return ep, nil
	}
	var subnets []netip.Prefix
	for _, p := range r.addrs {
		subnets = append(subnets, p.Masked())
	}
	inside, ok := r.conf.policy.WithoutBridge(subnets, r.gateways())
	if !ok {
		return ep, cnierr.Unsupported("ingressPolicy", r.conf.IngressPolicy, a.IfName+" has no bridge on this node: use isolated, or rules")
	}
	ep.Policy = inside
	return ep, nil
}

type ebpfJob struct {
	dp   loader.Interface
	ep   loader.Endpoint
	list func(network string) ([]*attachments.Record, error)
}

// checkFree refuses an address of another pod. Those of a device without a host
// end play no part in the datapath.
func (j *ebpfJob) checkFree(ctx context.Context) error {
	if j.ep.HostIfindex == 0 {
		return nil
	}
	return backend.EnableError(j.dp.CheckFree(ctx, j.ep.Ref.Owner(), j.ep.Addrs), j.list, "look whose the address is")
}

func (j *ebpfJob) Close() error { return j.dp.Close() }

// Record adds nothing: owner and addresses are enough.
func (*ebpfJob) Record(*section) {}

// Apply turns the feature on.
func (j *ebpfJob) Apply(ctx context.Context, rb *rollback.Stack) error {
	rb.Push("admit feature", func(ctx context.Context) error {
		return j.dp.Disable(ctx, j.ep.Ref.Owner(), loader.FeatureAdmit, loader.HeldBy(j.ep.Addrs))
	})
	return backend.EnableError(j.dp.Enable(ctx, j.ep, loader.FeatureAdmit), j.list, "admit %s", j.ep.Ref.IfName)
}

// Remove turns the feature off. A node that cannot run eBPF holds nothing that no
// record names.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, s *section) error {
	err := b.Existing(ctx, a, func(dp loader.Interface) error {
		err := backend.IgnoreNotLoaded(dp.Disable(ctx, ref.Owner(), loader.FeatureAdmit, s.held()))
		return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw the admission of %s", ref.IfName)
	})
	if s == nil && errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	return err
}

// Check compares the endpoint, its addresses and its programs.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, r request) error {
	ep, err := b.resolve(ctx, a, r)
	if err != nil {
		return backend.ResolveError(err, a.IfName, cnierr.CodeCheck)
	}
	const differs = "the admission of %s differs from the configuration"
	err = b.admin(a, r, func(node Netfilter, f netfilter.Firewall) error {
		return netfilter.CNIError(node.CheckAdmin(ctx, f), cnierr.CodeNoDatapath, differs, a.IfName)
	})
	if err != nil {
		return err
	}
	return b.Opener.Check(ctx, a, "the pod is not admitted", func(dp loader.Interface) error {
		return cnierr.Wrap(cnierr.CodeCheck, dp.CheckEndpoint(ctx, ep, loader.FeatureAdmit), differs, a.IfName)
	})
}

// Sweep lets the datapath remove the entries of unknown owners.
func (b ebpf) Sweep(ctx context.Context, a *cniskel.Args, _ string, valid map[attachments.ID]bool) error {
	return b.Opener.Sweep(ctx, a, b.Records.List, valid)
}

// Status opens the datapath as ADD would, which loads it if need be.
func (b ebpf) Status(ctx context.Context, a *cniskel.Args) error {
	err := b.Opener.Status(ctx, a)
	if err == nil {
		b.admitMarked(ctx, a, "")
	}
	return err
}
