// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "firewall"

// Opener opens the node's datapath.
type Opener = backend.Opener

// Deps are the plugin's dependencies. Netfilter may be nil.
type Deps struct {
	Opener
	// Resolve finds a pod's device, and its host end if it has one.
	Resolve func(ctx context.Context, netnsPath, ifname string) (loader.Endpoint, error)
	Records *attachments.Dir
	// Netfilter returns the node's other way, with an error if the node's
	// configuration cannot be read; it can be used with the defaults then. Nil:
	// there is only eBPF.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
}

type plugin struct{ Deps }

// New returns the plugin. It serves CNI 0.4.0 and later, as upstream.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.Since("0.4.0"),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       gc.Collector{List: d.Records.List, Detach: p.detach, Sweep: p.chooser().Sweep}.GC,
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
	r, err := requested(conf, prev, a)
	if err != nil {
		return nil, err
	}
	if len(r.addrs) == 0 {
		return result, nothing(conf)
	}
	if err := p.admit(ctx, a, r); err != nil {
		return nil, err
	}
	return result, nil
}

// nothing is the answer for a pod without an address: a policy would bind nothing.
func nothing(conf *Conf) error {
	if conf.policy.Empty() && !conf.NetworkPolicy {
		return nil
	}
	return cnierr.Config("prevResult", "ips", "has no address of the pod for ingressPolicy, rules and networkPolicy to be about")
}

// requested is the request of a call.
func requested(conf *Conf, prev *types100.Result, a *cniskel.Args) (request, error) {
	pod, err := conf.pod(a.Args)
	return request{ref: a.Ref(conf.Name), addrs: cniconf.PodAddrs(prev, a.IfName), prev: prev, conf: conf, pod: pod}, err
}

// admit records the attachment and lets the backend do it. On error nothing of
// it is left, and no record.
func (p *plugin) admit(ctx context.Context, a *cniskel.Args, r request) (err error) {
	b, job, err := p.prepare(ctx, a, r)
	if err != nil {
		return err
	}
	defer job.Close()

	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)

	holders, before := p.recorded(a, r.ref)
	data := section{Backend: b.Name()}
	job.Record(&data)
	for _, addr := range r.addrs {
		data.Addrs = append(data.Addrs, addr.Addr())
	}
	if before != nil && before.Backend == b.Name() && !before.same(data) {
		// A repeated ADD of other addresses: the record of the first is about to be replaced.
		if err := holders[0].Remove(ctx, a, r.ref, before); err != nil {
			return err
		}
	}
	if err := p.Records.Begin(r.ref, a.Netns, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	rb.Push("attachment record", func(context.Context) error {
		return p.Records.Remove(r.ref, Name)
	})
	if err := job.Apply(ctx, &rb); err != nil {
		return err
	}
	if before != nil && before.Backend != b.Name() { // a repeated ADD, by another backend
		if err := holders[0].Remove(ctx, a, r.ref, before); err != nil {
			return err
		}
	}
	if err := p.Records.Complete(r.ref, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// check compares what the attachment's backend holds with what the
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
	r, err := requested(conf, prev, a)
	if err != nil {
		return err
	}
	if len(r.addrs) == 0 {
		return nil
	}
	holders, s := p.recorded(a, r.ref)
	if s != nil {
		return holders[0].Check(ctx, a, r)
	}
	b, err := p.choose(ctx, a, conf)
	if err != nil {
		return err
	}
	return backend.CheckUnrecorded(b, p.chooser().All(a), func(b Backend) error { return b.Check(ctx, a, r) })
}

// status says whether an ADD would work now: the configuration must be one
// that ADD accepts, and a backend must be able to run.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	conf, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	b, err := p.choose(ctx, a, conf)
	if err == nil && conf.IptablesAdminChainName != "" && b.Name() == backend.EBPF {
		_, err = p.chooser().Select(ctx, a, netfilter.NameIPTables) // for the chain
	}
	return backend.Status(ctx, a, b, err, func(why error) (Backend, error) { return p.fallback(ctx, a, conf, why) })
}
