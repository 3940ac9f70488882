// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/meta/internal/dpchain"
)

// ebpf is the back end that programs the datapath's maps.
type ebpf struct{ Deps }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backendEBPF }

// Prepare finds the pod's device and opens the datapath, which loads it if need
// be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args, w want) (Job, error) {
	ep, err := b.resolve(ctx, a, w)
	if err != nil {
		return nil, dpchain.ResolveError(err, a.IfName, cnierr.CodeKernel)
	}
	dp, err := b.Open(ctx, a)
	if err != nil {
		return nil, dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	return &ebpfJob{dp: dp, ep: ep, ports: w.ports}, nil
}

// resolve describes the pod's device, with every address the pod has on it:
// the datapath drops what a pod sends from any other.
func (b ebpf) resolve(ctx context.Context, a *cniskel.Args, w want) (loader.Endpoint, error) {
	ep, err := b.Resolve(ctx, a.Netns, a.IfName)
	ep.Ref, ep.Addrs = w.ref, w.addrs
	return ep, err
}

type ebpfJob struct {
	dp    Datapath
	ep    loader.Endpoint
	ports []loader.HostPort
}

func (j *ebpfJob) Close() error { return j.dp.Close() }

// Describe adds nothing: keys and owner are enough.
func (*ebpfJob) Describe(*section) {}

// Do makes the endpoint and the hostPorts.
func (j *ebpfJob) Do(ctx context.Context, undos *rollback.Stack) error {
	owner := j.ep.Ref.Owner()
	undos.Push("publish feature", func(ctx context.Context) error {
		return j.dp.Disable(ctx, owner, loader.FeaturePublish)
	})
	if err := j.dp.Enable(ctx, j.ep, loader.FeaturePublish); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "attach %s to the datapath", j.ep.Ref.IfName)
	}
	undos.Push("host ports", func(ctx context.Context) error {
		return j.dp.Unpublish(ctx, owner, j.ports)
	})
	return cnierr.Wrap(cnierr.CodeKernel, j.dp.Publish(ctx, owner, j.ports), "publish host ports")
}

// Remove takes out the ports and the publish feature. A port that another
// attachment has taken since is left alone.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, ports []portKey) error {
	dp, err := b.OpenExisting(ctx, a)
	switch {
	case errors.Is(err, loader.ErrNotLoaded):
		return nil
	case errors.Is(err, loader.ErrUnavailable) && ports == nil:
		return nil // no record of ours, on a node that cannot hold anything of ours
	case err != nil:
		return dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	// Ports first: a port must not lead to a pod whose endpoint is gone.
	err = errors.Join(
		unlessGone(dp.Unpublish(ctx, ref.Owner(), hostPorts(ports))),
		unlessGone(dp.Disable(ctx, ref.Owner(), loader.FeaturePublish)))
	return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw host ports")
}

// unlessGone takes a datapath whose maps somebody has removed for one that was
// never loaded: it holds nothing of ours.
func unlessGone(err error) error {
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	return err
}

// Check compares the endpoint, its programs and every hostPort entry.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, w want) error {
	ep, err := b.resolve(ctx, a, w)
	if err != nil {
		return dpchain.ResolveError(err, a.IfName, cnierr.CodeCheck)
	}
	dp, err := b.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeCheck, err, "host ports are not published")
	}
	if err != nil {
		return dpchain.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	err = errors.Join(
		dp.CheckEndpoint(ctx, ep, loader.FeaturePublish),
		dp.CheckPorts(ctx, w.ref.Owner(), w.ports))
	return cnierr.Wrap(cnierr.CodeCheck, err, "host ports differ from the configuration")
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
	return dp.Close()
}

func hostPorts(keys []portKey) []loader.HostPort {
	if keys == nil {
		return nil
	}
	out := make([]loader.HostPort, 0, len(keys))
	for _, k := range keys {
		out = append(out, loader.HostPort{HostIP: k.HostIP, Proto: k.Proto, Port: k.Port})
	}
	return out
}
