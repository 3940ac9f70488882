// SPDX-License-Identifier: Apache-2.0

// Package firewall is the chained plugin that admits a pod's traffic on the
// node, by eBPF, netfilter tables or firewalld. It owns the admit feature of its
// attachment's endpoint and its section of the attachment record; programs, maps
// and devices belong to the loader, rules to pkg/netfilter. What a back end cannot
// do is refused by name (CNI error 2), never parsed and ignored.
package firewall

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/meta/internal/dpchain"
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

// Deps are the plugin's ways to the world. Netfilter may be nil.
type Deps struct {
	// Open returns the node's datapath and loads it when nothing is loaded;
	// an error that is loader.ErrUnavailable carries the probe's reason.
	Open func(ctx context.Context, a *cniskel.Args) (Datapath, error)
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniskel.Args) (Datapath, error)
	// Resolve finds a pod's device, and its host end if it has one.
	Resolve func(ctx context.Context, netnsPath, ifname string) (loader.Endpoint, error)
	Records *attachments.Dir
	// Netfilter returns the node's other way, with an error if the node's
	// configuration cannot be read; it can be used with the defaults then. Nil:
	// there is only eBPF.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
}

type plugin struct{ Deps }

// New returns the plugin. It serves CNI 0.4.0 and later, as the reference.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		About:    version.About(Name),
		Versions: version.Since("0.4.0"),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       dpchain.Collector{List: d.Records.List, Withdraw: p.collect, Sweep: p.sweep}.GC,
		Status:   p.status,
	}
}

// add admits every address that the pod has on CNI_IFNAME and passes the
// previous result on. Without an address there is nothing to do.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
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
	w := wanted(conf, prev, a)
	if len(w.addrs) == 0 {
		return result, nothing(conf)
	}
	b, err := p.choose(ctx, a, w)
	if err != nil {
		return nil, err
	}
	if err := p.admit(ctx, a, b, w); err != nil {
		return nil, err
	}
	return result, nil
}

// nothing is the answer for a pod without an address: a policy would bind nothing.
func nothing(conf *Conf) error {
	if conf.policy.Empty() {
		return nil
	}
	return cnierr.Config("prevResult", "ips", "has no address of the pod for ingressPolicy and rules to be about")
}

func wanted(conf *Conf, prev *types100.Result, a *cniskel.Args) want {
	return want{ref: a.Ref(conf.Name), addrs: cniconf.PodAddrs(prev, a.IfName), prev: prev, conf: conf}
}

// admit records the attachment and lets the back end do it. On error nothing of
// it is left, and no record.
func (p *plugin) admit(ctx context.Context, a *cniskel.Args, b Backend, w want) (err error) {
	job, err := b.Prepare(ctx, a, w)
	if err != nil {
		if b, err = p.instead(ctx, a, w.conf, err); err != nil {
			return err
		}
		if job, err = b.Prepare(ctx, a, w); err != nil {
			return err
		}
	}
	defer job.Close()

	var undos rollback.Stack
	defer undos.Rollback(ctx, &err)

	holders, before := p.recorded(a, w.ref)
	data := section{Backend: b.Name()}
	job.Describe(&data)
	for _, addr := range w.addrs {
		data.Addrs = append(data.Addrs, addr.Addr())
	}
	if before != nil && before.Backend == b.Name() && !before.same(data) {
		// A repeated ADD of other addresses: the record of the first is about to be replaced.
		if err := holders[0].Remove(ctx, a, w.ref, before); err != nil {
			return err
		}
	}
	if err := p.Records.Begin(w.ref, a.Netns, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	undos.Push("attachment record", func(context.Context) error {
		return p.Records.Remove(w.ref, Name)
	})
	if err := job.Do(ctx, &undos); err != nil {
		return err
	}
	if before != nil && before.Backend != b.Name() { // a repeated ADD, by another back end
		if err := holders[0].Remove(ctx, a, w.ref, before); err != nil {
			return err
		}
	}
	if err := p.Records.Complete(w.ref, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// check compares what the attachment's back end holds with what the
// configuration and the previous result ask for.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	conf, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := conf.Chained()
	if err != nil {
		return err
	}
	w := wanted(conf, prev, a)
	if len(w.addrs) == 0 {
		return nil
	}
	holders, s := p.recorded(a, w.ref)
	if s != nil {
		return holders[0].Check(ctx, a, w)
	}
	b, err := p.choose(ctx, a, w)
	if err != nil {
		return err
	}
	// Without our section in a record, as for a pod of the reference plugins, any back end that has everything will do.
	differs := b.Check(ctx, a, w)
	if differs == nil || slices.ContainsFunc(p.backends(a), func(h Backend) bool { return h.Name() != b.Name() && h.Check(ctx, a, w) == nil }) {
		return nil
	}
	return differs
}

// status says whether an ADD would work now: the configuration must be one
// that ADD accepts, and a back end must be able to run.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	conf, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	b, err := p.choose(ctx, a, want{conf: conf})
	if err == nil {
		err = b.Status(ctx, a)
	}
	if errors.Is(err, loader.ErrUnavailable) {
		_, err = p.instead(ctx, a, conf, err)
	}
	return cnierr.Unavailable(err)
}
