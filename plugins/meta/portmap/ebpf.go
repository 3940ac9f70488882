// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// ebpf is the backend that programs the datapath's maps.
type ebpf struct{ Deps }

var _ Backend = ebpf{}

func (ebpf) Name() string { return backend.EBPF }

// Prepare finds the pod's device and opens the datapath, which loads it if need
// be.
func (b ebpf) Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error) {
	ports, err := r.forEBPF()
	if err != nil {
		return nil, err
	}
	ep, err := b.resolve(ctx, a, r)
	if err != nil {
		return nil, backend.ResolveError(err, a.IfName, cnierr.CodeKernel)
	}
	dp, err := b.Load(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := withinLimits(dp, r, ports); err != nil {
		return nil, errors.Join(err, dp.Close())
	}
	if err := b.enableError(dp.CheckFree(ctx, ep.Ref.Owner(), ep.Addrs), "look whose the address is"); err != nil {
		return nil, errors.Join(err, dp.Close())
	}
	if r.conf.ExternalSetMarkChain != nil || r.conf.MarkMasqBit != nil {
		a.Log.Info("markMasqBit and externalSetMarkChain have no effect with eBPF, which masquerades without a mark")
	}
	return &ebpfJob{b: b, dp: dp, ep: ep, before: r.before.keysFor(b), ports: ports}, nil
}

// withinLimits refuses more than one attachment may take of the maps that all pods share.
func withinLimits(dp loader.Interface, r request, ports []hostport.Mapping) error {
	err := dp.HostPortLimits().Check(ports)
	mappings := fmt.Sprintf("of %d mappings", len(r.conf.RuntimeConfig.PortMappings))
	switch {
	case errors.Is(err, hostport.ErrTooManySources):
		return cnierr.Config("allowedSources", mappings, err.Error())
	case err != nil:
		return cnierr.Config("runtimeConfig.portMappings", mappings, err.Error())
	}
	return nil
}

// resolve describes the pod's device, with every address the pod has on it:
// the datapath drops what a pod sends from any other.
func (b ebpf) resolve(ctx context.Context, a *cniskel.Args, r request) (loader.Endpoint, error) {
	ep, err := b.Resolve(ctx, a.Netns, a.IfName)
	ep.Ref, ep.Addrs = r.ref, r.addrs
	return ep, err
}

func (b ebpf) enableError(err error, format string, a ...any) error {
	return backend.EnableError(err, b.Records.List, format, a...)
}

type ebpfJob struct {
	b     ebpf
	dp    loader.Interface
	ep    loader.Endpoint
	ports []hostport.Mapping

	before []hostport.Key // of an earlier ADD; nil: not known
}

func (j *ebpfJob) Close() error { return j.dp.Close() }

// Record adds the addresses, by which DEL finds the endpoint.
func (j *ebpfJob) Record(s *section) { s.Addrs = loader.HeldBy(j.ep.Addrs).Addrs }

// Apply makes the endpoint and the hostPorts.
func (j *ebpfJob) Apply(ctx context.Context, rb *rollback.Stack) error {
	owner := j.ep.Ref.Owner()
	rb.Push("publish feature", func(ctx context.Context) error {
		return j.dp.Disable(ctx, owner, loader.FeaturePublish, loader.HeldBy(j.ep.Addrs))
	})
	if err := j.dp.Enable(ctx, j.ep, loader.FeaturePublish); err != nil {
		return j.b.enableError(err, "attach %s to the datapath", j.ep.Ref.IfName)
	}
	rb.Push("host ports", func(ctx context.Context) error {
		return j.dp.RemoveHostPorts(ctx, owner, j.keys())
	})
	return cnierr.Wrap(cnierr.CodeKernel, j.dp.SetHostPorts(ctx, owner, j.before, j.ports, siblings(j.b.Records, j.ep.Ref)), "publish host ports")
}

// held is what the record says of the endpoint. Nothing is known without ports of a record.
func (b ebpf) held(ref attachments.ID, ports []recordedPort) loader.Held {
	if ports == nil {
		return loader.Held{}
	}
	s, _, _ := attachments.ReadSection[section](b.Records, ref, Name)
	return loader.Held{Addrs: s.Addrs}
}

// Remove takes out the ports and the publish feature. It leaves a port alone that
// another attachment has taken since. A node that cannot run eBPF holds nothing
// that no record names.
func (b ebpf) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, ports []recordedPort) error {
	err := b.Existing(ctx, a, func(dp loader.Interface) error {
		// Ports first: a port must not lead to a pod whose endpoint is gone.
		err := errors.Join(
			backend.IgnoreNotLoaded(dp.RemoveHostPorts(ctx, ref.Owner(), recordKeys(ports))),
			backend.IgnoreNotLoaded(dp.Disable(ctx, ref.Owner(), loader.FeaturePublish, b.held(ref, ports))))
		return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw host ports")
	})
	if ports == nil && errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	return err
}

// Check compares the endpoint, its programs and every hostPort entry.
func (b ebpf) Check(ctx context.Context, a *cniskel.Args, r request) error {
	ports, err := r.forEBPF()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeCheck, err, "host ports differ from the configuration")
	}
	ep, err := b.resolve(ctx, a, r)
	if err != nil {
		return backend.ResolveError(err, a.IfName, cnierr.CodeCheck)
	}
	return b.Opener.Check(ctx, a, "host ports are not published", func(dp loader.Interface) error {
		err := errors.Join(
			dp.CheckEndpoint(ctx, ep, loader.FeaturePublish),
			dp.CheckHostPorts(ctx, r.ref.Owner(), ports, siblings(b.Records, r.ref)))
		return cnierr.Wrap(cnierr.CodeCheck, err, "host ports differ from the configuration")
	})
}

// Sweep lets the datapath remove the entries of unknown owners.
func (b ebpf) Sweep(ctx context.Context, a *cniskel.Args, _ string, valid map[attachments.ID]bool) error {
	return b.Opener.Sweep(ctx, a, b.Records.List, valid)
}

// Status opens the datapath as ADD would, which loads it if need be.
func (b ebpf) Status(ctx context.Context, a *cniskel.Args) error { return b.Opener.Status(ctx, a) }

// forEBPF returns the request's ports. The error is that of the first port which
// eBPF cannot publish: without its conditions it would be open to all clients.
func (r request) forEBPF() ([]hostport.Mapping, error) {
	out := make([]hostport.Mapping, 0, len(r.ports))
	for _, hp := range r.ports {
		if hp.ebpfUnsupported != nil {
			return nil, hp.ebpfUnsupported
		}
		out = append(out, hp.Mapping)
	}
	return out, nil
}

// recordKeys returns the keys of a record's ports, nil for none.
func recordKeys(ports []recordedPort) []hostport.Key {
	if ports == nil {
		return nil
	}
	out := make([]hostport.Key, 0, len(ports))
	for _, p := range ports {
		out = append(out, p.Key)
	}
	return out
}

// keys returns the keys that the attachment may hold while Apply runs; nil: not known.
func (j *ebpfJob) keys() []hostport.Key {
	if j.before == nil {
		return nil
	}
	out := slices.Clone(j.before)
	for _, p := range j.ports {
		out = append(out, p.Key)
	}
	return out
}
