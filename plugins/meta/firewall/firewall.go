// SPDX-License-Identifier: Apache-2.0

// Package firewall is the chained plugin that admits a pod's traffic on the
// node. It owns the admit feature of its attachment's endpoint; programs, maps
// and devices belong to the loader.
//
// Only the eBPF back end and the open ingress policy exist: what is missing is
// refused by name (CNI error 2), never parsed and ignored.
package firewall

import (
	"context"
	"errors"
	"io"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/pkg/undo"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/meta/internal/chained"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "firewall"

// Datapath is what the plugin needs of *loader.Datapath.
type Datapath interface {
	Enable(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
	Disable(ctx context.Context, owner uint64, f loader.Feature) error
	CheckEndpoint(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
	Endpoints(ctx context.Context) ([]loader.EndpointStatus, error)
	GC(ctx context.Context, keep func(owner uint64) bool) error
	io.Closer
}

// Records is what the plugin needs of *store.Dir.
type Records interface {
	Begin(ref store.Ref, netnsPath, plugin string, data any) error
	Complete(ref store.Ref, plugin string, data any) error
	Load(ref store.Ref) (*store.Record, error)
	Remove(ref store.Ref, plugin string) error
	List(network string) ([]*store.Record, error)
}

// Deps are the plugin's ways to the world. All fields are required.
type Deps struct {
	// Open returns the node's datapath and loads it when nothing is loaded;
	// an error that is loader.ErrUnavailable carries the probe's reason.
	Open func(ctx context.Context, a *cniplugin.Args) (Datapath, error)
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniplugin.Args) (Datapath, error)
	// Resolve finds the host end of a pod's interface.
	Resolve func(ctx context.Context, netnsPath, ifname string) (loader.Endpoint, error)
	Records Records
}

type plugin struct{ Deps }

// New returns the plugin. It serves CNI 0.4.0 and later, as the reference.
func New(d Deps) *cniplugin.Plugin {
	p := &plugin{d}
	return &cniplugin.Plugin{
		Name:     Name,
		About:    version.About(Name),
		Versions: version.Since("0.4.0"),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       chained.Collector[Datapath]{List: d.Records.List, Open: d.OpenExisting, Withdraw: p.collect}.GC,
		Status:   p.status,
	}
}

// section is what an attachment record holds of this plugin. The attachment's
// name is enough to undo it, so there is nothing to add.
type section struct{}

// add admits every address that the pod has on CNI_IFNAME and passes the
// previous result on. Without an address there is nothing to do.
func (p *plugin) add(ctx context.Context, a *cniplugin.Args) (types.Result, error) {
	conf, err := parse(a.StdinData)
	if err != nil {
		return nil, err
	}
	prev, err := conf.Chained()
	if err != nil {
		return nil, err
	}
	result, err := cniconf.Convert(prev, conf.CNIVersion)
	if err != nil {
		return nil, err
	}
	addrs := cniconf.PodAddrs(prev, a.IfName)
	if len(addrs) == 0 {
		return result, nil
	}
	ep, err := p.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		return nil, chained.ResolveError(err, a.IfName, cnierr.CodeKernel)
	}
	ep.Ref, ep.Addrs = chained.Ref(conf.Name, a), addrs
	if err := p.admit(ctx, a, ep); err != nil {
		return nil, err
	}
	return result, nil
}

// admit turns the feature on. On error nothing of it is left, and no record.
func (p *plugin) admit(ctx context.Context, a *cniplugin.Args, ep loader.Endpoint) (err error) {
	dp, err := p.Open(ctx, a)
	if err != nil {
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()

	var undos undo.Stack
	defer undos.Rollback(ctx, &err)

	if err := p.Records.Begin(ep.Ref, a.Netns, Name, section{}); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	undos.Push("attachment record", func(context.Context) error {
		return p.Records.Remove(ep.Ref, Name)
	})
	undos.Push("admit feature", func(ctx context.Context) error {
		return dp.Disable(ctx, ep.Ref.Owner(), loader.FeatureAdmit)
	})
	if err := dp.Enable(ctx, ep, loader.FeatureAdmit); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "admit %s", a.IfName)
	}
	if err := p.Records.Complete(ep.Ref, Name, section{}); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// check compares the endpoint, its addresses and its programs with what the
// previous result asks for.
func (p *plugin) check(ctx context.Context, a *cniplugin.Args) error {
	conf, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := conf.Chained()
	if err != nil {
		return err
	}
	addrs := cniconf.PodAddrs(prev, a.IfName)
	if len(addrs) == 0 {
		return nil
	}
	ep, err := p.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		return chained.ResolveError(err, a.IfName, cnierr.CodeCheck)
	}
	ep.Ref, ep.Addrs = chained.Ref(conf.Name, a), addrs
	dp, err := p.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeCheck, err, "the pod is not admitted")
	}
	if err != nil {
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	return cnierr.Wrap(cnierr.CodeCheck, dp.CheckEndpoint(ctx, ep, loader.FeatureAdmit),
		"the admission of %s differs from the configuration", a.IfName)
}

// status says whether an ADD would work now: the configuration must be one
// that ADD accepts, and the datapath must open, which loads it if need be.
func (p *plugin) status(ctx context.Context, a *cniplugin.Args) error {
	if _, err := parse(a.StdinData); err != nil {
		return err
	}
	dp, err := p.Open(ctx, a)
	if err != nil {
		return chained.OpenError(err, cnierr.CodeUnavailable)
	}
	return dp.Close()
}
