// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/pkg/undo"
	"github.com/sluice-cni/sluice/plugins/meta/internal/chained"
)

// add publishes the mappings and passes the previous result on. With nothing
// to publish it returns before it touches or loads anything.
func (p *plugin) add(ctx context.Context, a *cniplugin.Args) (types.Result, error) {
	req, err := parse(a.StdinData)
	if err != nil {
		return nil, err
	}
	prev, err := req.conf.Chained()
	if err != nil {
		return nil, err
	}
	result, err := cniconf.Convert(prev, req.conf.CNIVersion)
	if err != nil {
		return nil, err
	}
	ref := chained.Ref(req.conf.Name, a)
	addrs := cniconf.PodAddrs(prev, a.IfName)
	ports := req.ports(addrs)
	if len(ports) == 0 {
		return result, p.dropRecorded(ctx, a, ref)
	}
	ep, err := p.resolve(ctx, a, ref, addrs)
	if err != nil {
		return nil, chained.ResolveError(err, a.IfName, cnierr.CodeKernel)
	}
	if err := p.publish(ctx, a, ep, ports); err != nil {
		return nil, err
	}
	return result, nil
}

// publish makes the endpoint and the hostPorts. On error nothing of them is
// left, and no record.
func (p *plugin) publish(ctx context.Context, a *cniplugin.Args, ep loader.Endpoint, ports []loader.HostPort) (err error) {
	dp, err := p.Open(ctx, a)
	if err != nil {
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()

	var undos undo.Stack
	defer undos.Rollback(ctx, &err)

	ref, owner := ep.Ref, ep.Ref.Owner()
	data := section{Ports: keysOf(ports)}
	if err := p.Records.Begin(ref, a.Netns, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	undos.Push("attachment record", func(context.Context) error {
		return p.Records.Remove(ref, Name)
	})
	undos.Push("publish feature", func(ctx context.Context) error {
		return dp.Disable(ctx, owner, loader.FeaturePublish)
	})
	if err := dp.Enable(ctx, ep, loader.FeaturePublish); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "attach %s to the datapath", a.IfName)
	}
	undos.Push("host ports", func(ctx context.Context) error {
		return dp.Unpublish(ctx, owner, ports)
	})
	if err := dp.Publish(ctx, owner, ports); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "publish host ports")
	}
	if err := p.Records.Complete(ref, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// resolve describes the pod's device, with every address the pod has on it:
// the datapath drops what a pod sends from any other.
func (p *plugin) resolve(ctx context.Context, a *cniplugin.Args, ref store.Ref, addrs []netip.Prefix) (loader.Endpoint, error) {
	ep, err := p.Resolve(ctx, a.Netns, a.IfName)
	ep.Ref, ep.Addrs = ref, addrs
	return ep, err
}

// dropRecorded takes out what an earlier ADD of the same attachment published,
// so that a repeated ADD without mappings leaves no old ones.
func (p *plugin) dropRecorded(ctx context.Context, a *cniplugin.Args, ref store.Ref) error {
	h := p.held(ref)
	if len(h.keys) == 0 {
		return nil
	}
	return p.withdraw(ctx, a, ref, h)
}
