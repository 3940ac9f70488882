// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// add publishes the mappings and passes the previous result on. With nothing
// to publish it returns before it touches or loads anything.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
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
	w := req.want(a.Ref(req.conf.Name), cniconf.PodAddrs(prev, a.IfName))
	if len(w.ports) == 0 {
		return result, p.dropRecorded(ctx, a, w.ref)
	}
	for _, m := range req.shadowed {
		a.Log.Warn("a mapping has no effect: an earlier one is for the same port", log.String("mapping", m))
	}
	jobs, shares, err := p.prepare(ctx, a, w)
	if err != nil {
		return nil, err
	}
	defer closeAll(jobs)
	if err := p.publish(ctx, a, w.ref, jobs, shares); err != nil {
		return nil, err
	}
	return result, nil
}

// want is the request for a pod with these addresses.
func (r *request) want(ref attachments.Ref, addrs []netip.Prefix) want {
	return want{ref: ref, addrs: addrs, ports: r.ports(addrs), snat: r.snat, conf: r.conf}
}

// prepare finds out who carries out what, and that they can. Nothing is changed
// yet. The caller must close the jobs.
func (p *plugin) prepare(ctx context.Context, a *cniskel.Args, w want) ([]Job, []share, error) {
	shares, err := p.divide(ctx, a, w)
	if err != nil {
		return nil, nil, err
	}
	jobs, err := prepareAll(ctx, a, shares)
	if err == nil {
		return jobs, shares, nil
	}
	if shares, err = p.instead(ctx, a, w, err); err != nil {
		return nil, nil, err
	}
	jobs, err = prepareAll(ctx, a, shares)
	return jobs, shares, err
}

func prepareAll(ctx context.Context, a *cniskel.Args, shares []share) ([]Job, error) {
	jobs := make([]Job, 0, len(shares))
	for _, s := range shares {
		j, err := s.backend.Prepare(ctx, a, s.want)
		if err != nil {
			closeAll(jobs)
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func closeAll(jobs []Job) {
	for _, j := range jobs {
		_ = j.Close() // descriptors only
	}
}

// publish records the attachment and runs the jobs. On error nothing of them is
// left, and no record.
func (p *plugin) publish(ctx context.Context, a *cniskel.Args, ref attachments.Ref, jobs []Job, shares []share) (err error) {
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)

	before, data := p.held(ref), section{Ports: keysOf(shares)}
	for _, j := range jobs {
		j.Record(&data)
	}
	if err := p.Records.Begin(ref, a.Netns, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	rb.Push("attachment record", func(context.Context) error {
		return p.Records.Remove(ref, Name)
	})
	for _, j := range jobs {
		if err := j.Apply(ctx, &rb); err != nil {
			return err
		}
	}
	if err := p.supersede(ctx, a, ref, before, shares); err != nil {
		return err
	}
	if err := p.Records.Complete(ref, Name, data); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	return nil
}

// supersede takes out what an earlier ADD of the attachment published by
// backends that this one does not use.
func (p *plugin) supersede(ctx context.Context, a *cniskel.Args, ref attachments.Ref, before held, now []share) error {
	if before.unknown || len(before.keys) == 0 {
		return nil
	}
	var errs []error
	for _, b := range p.named(a, before) {
		if !slices.ContainsFunc(now, func(s share) bool { return s.backend.Name() == b.Name() }) {
			errs = append(errs, b.Remove(ctx, a, ref, before.of(b)))
		}
	}
	return errors.Join(errs...)
}

// dropRecorded takes out what an earlier ADD of the same attachment published,
// so that a repeated ADD without mappings leaves no old ones.
func (p *plugin) dropRecorded(ctx context.Context, a *cniskel.Args, ref attachments.Ref) error {
	h := p.held(ref)
	if len(h.keys) == 0 {
		return nil
	}
	return p.withdraw(ctx, a, ref, h)
}
