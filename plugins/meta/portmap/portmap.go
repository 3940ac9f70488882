// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "portmap"

// Netfilter is the node's netfilter side.
type Netfilter = backend.Netfilter

// Opener opens the node's datapath.
type Opener = backend.Opener

// Deps are the plugin's dependencies. Netfilter may be nil.
type Deps struct {
	Opener
	// Resolve finds the host veth of a pod's interface.
	Resolve func(ctx context.Context, netnsPath, ifname string) (loader.Endpoint, error)
	Records *attachments.Dir
	// Netfilter returns the node's netfilter side, see backend.Chooser. Nil: eBPF
	// is the only backend.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
	// Conflicts says what the node does about hostPorts on which a socket of its own waits. Nil: it does not look.
	Conflicts func(a *cniskel.Args) (nodeconf.Conflicts, error)
	// TunnelsFile is nodeports.TunnelsFile.
	TunnelsFile string
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       gc.Collector{List: d.Records.List, Detach: p.detach, Sweep: p.chooser().Sweep}.GC,
		Status:   p.status,
	}
}

// add publishes the ports and passes the previous result on. With nothing to
// publish it loads nothing. It only lets the pod use the ports of others, where
// any are published.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	s, prev, err := parseChained(a)
	if err != nil {
		return nil, err
	}
	result, err := cniconf.Convert(prev, s.conf.CNIVersion)
	if err != nil {
		return nil, err
	}
	r := s.request(a, prev)
	if len(r.ports) == 0 {
		p.ServeClients(ctx, a, nodeDevices(prev)...)
		return result, p.removeRecorded(ctx, a, r.ref)
	}
	for _, m := range s.shadowed {
		a.Log.Warn("a mapping has no effect: an earlier one is for the same port", log.String("mapping", m))
	}
	if err := p.checkNode(a, r); err != nil {
		return nil, err
	}
	r.before = p.recordedPorts(r.ref)
	parts, err := p.assign(ctx, a, r)
	if err != nil {
		return nil, err
	}
	defer parts.close()
	if err := p.publish(ctx, a, r.ref, r.before, parts); err != nil {
		return nil, err
	}
	return result, nil
}

// nodeDevices are the names of the node's devices in a result.
func nodeDevices(res *types100.Result) (names []string) {
	for _, i := range res.Interfaces {
		if i.Sandbox == "" {
			names = append(names, i.Name)
		}
	}
	return names
}

// publish records the attachment and applies the jobs. After an error nothing of
// them is left, and no record.
func (p *plugin) publish(ctx context.Context, a *cniskel.Args, ref attachments.ID, before recordedPorts, parts assignments) (err error) {
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)

	data := parts.section()
	data.Addrs = data.addrs(before)
	// Until the jobs are applied, DEL has to find the ports of an earlier ADD too. If Begin fails, the record of that ADD stays.
	if err := p.Records.Begin(ref, a.Netns, Name, data.with(before)); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	rb.Push("attachment record", func(context.Context) error { return p.Records.Remove(ref, Name) })
	for _, part := range parts {
		if err := part.job.Apply(ctx, &rb); err != nil {
			return err
		}
	}
	if err := p.removeSuperseded(ctx, a, ref, before, parts); err != nil {
		return err
	}
	if err := p.Records.Complete(ref, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// del needs nothing but the attachment's name: neither runtimeConfig, nor
// prevResult, nor the namespace, nor a configuration that ADD would accept.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	ref := a.Ref(conf.Name)
	ports := p.recordedPorts(ref)
	if ports.none && hasMappings(a.StdinData) {
		// An ADD of Sluice would have recorded the ports. So the record is that of other plugins of the chain, and upstream's
		// portmap published them.
		ports = recordedPorts{unknown: true}
	}
	return p.remove(ctx, a, ref, ports)
}

// detach is DEL for an attachment that only its record names.
func (p *plugin) detach(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
	return p.remove(ctx, call, rec.ID, p.recordedPorts(rec.ID))
}

// remove takes out the ports, and the record once nothing of them is left.
// Missing is success.
func (p *plugin) remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, ports recordedPorts) error {
	if ports.none {
		return nil
	}
	var errs []error
	for _, b := range p.backendsOf(a, ports) {
		errs = append(errs, b.Remove(ctx, a, ref, ports.of(b)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.Records.Remove(ref, Name); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "remove the attachment record")
	}
	return nil
}

// check compares what the attachment's backends hold with what the configuration
// and the previous result ask for.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	s, prev, err := parseChained(a)
	if err != nil {
		return err
	}
	r := s.request(a, prev)
	if len(r.ports) == 0 {
		return nil
	}
	recorded := p.recordedPorts(r.ref)
	parts, err := p.splitByRecord(ctx, a, r, recorded)
	if err != nil {
		return err
	}
	var errs []error
	for _, part := range parts {
		errs = append(errs, part.backend.Check(ctx, a, part.request))
	}
	differs := errors.Join(errs...)
	if differs != nil && len(recorded.keys) == 0 && p.publishedByAny(ctx, a, r) {
		return nil
	}
	return differs
}

// status says whether an ADD would work now: the configuration must be one that
// ADD accepts, and a backend must be able to run.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	s, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	r := request{settings: s}
	wanted, triesEBPF, err := p.wanted(ctx, a, r)
	if err != nil {
		return err
	}
	for _, c := range s.conditions {
		if c.unknown != nil && wanted == backend.EBPF {
			return c.unknown
		}
	}
	if !triesEBPF {
		_, err = p.assignAll(ctx, a, wanted, r)
		return cnierr.Unavailable(err)
	}
	why := (ebpf{p.Deps}).Status(ctx, a)
	if why == nil {
		return nil
	}
	_, err = p.fallback(ctx, a, r, why)
	return cnierr.Unavailable(err)
}
