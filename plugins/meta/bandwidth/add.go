// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// add limits the pod's interface and passes the previous result on, with the
// intermediate device added where there is one, as upstream does. With
// nothing to limit it touches nothing.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	req, err := p.parse(a)
	if err != nil {
		return nil, err
	}
	prev, err := req.conf.Chained()
	if err != nil {
		return nil, err
	}
	if _, err := cniconf.Convert(prev, req.conf.CNIVersion); err != nil {
		return nil, err
	}
	ref := a.Ref(req.conf.Name)
	if err := p.forget(ctx, a, ref); err != nil { // what an earlier ADD of this attachment has made
		return nil, err
	}
	if !req.nothing() {
		ifb, err := p.limit(ctx, a, req, ref, cniconf.PodAddrs(prev, a.IfName))
		if err != nil {
			return nil, err
		}
		if ifb != nil {
			prev.Interfaces = append(prev.Interfaces, ifb)
		}
	}
	return cniconf.Convert(prev, req.conf.CNIVersion)
}

func (p *plugin) parse(a *cniskel.Args) (*request, error) {
	backend, err := p.Backend(a)
	if err != nil {
		return nil, err
	}
	return parse(a.StdinData, backend)
}

// job is one ADD at work.
type job struct {
	*plugin
	a   *cniskel.Args
	ref attachments.ID
	dev *device
	dp  loader.Interface // nil: the node has none
	s   section
	rb  rollback.Stack

	noBurst []string // of the request
}

// limit makes everything. On error nothing of it is left, and no record. It
// returns the intermediate device on the node, if one was made.
func (p *plugin) limit(ctx context.Context, a *cniskel.Args, req *request, ref attachments.ID, addrs []netip.Prefix) (_ *types100.Interface, err error) {
	dev, err := openDevice(a.Netns, a.IfName, cnierr.CodeKernel)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	j := &job{plugin: p, a: a, ref: ref, dev: dev, noBurst: req.noBurst}
	if err := j.open(ctx, req); err != nil {
		return nil, err
	}
	if j.dp != nil {
		defer j.dp.Close()
	}
	defer j.rb.Rollback(ctx, &err)
	j.s.Addrs = loader.HeldBy(addrs).Addrs
	if err := j.plan(req); err != nil {
		return nil, err
	}
	if err := j.checkFree(ctx, addrs); err != nil {
		return nil, err
	}
	if err := p.Records.Begin(ref, a.Netns, Name, j.s); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	j.rb.Push("attachment record", func(context.Context) error { return p.Records.Remove(ref, Name) })
	if err := j.apply(ctx, addrs); err != nil {
		return nil, err
	}
	if err := p.Records.Complete(ref, Name, j.s); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	j.say()
	return j.ifbOnNode()
}

// open chooses the backend and opens the datapath. A token bucket works without
// one, but flows must not be led past it where there is one.
func (j *job) open(ctx context.Context, req *request) error {
	dp, err := j.Open(ctx, j.a)
	if err != nil && (req.backend == BackendEDT || !errors.Is(err, loader.ErrUnavailable)) {
		return j.OpenError(err, cnierr.CodeNoDatapath)
	}
	j.s.Backend, j.s.Reason = choose(dp, err, req.backend)
	if err != nil {
		// The node asks for another backend. A network that names eBPF may have loaded the datapath nevertheless. It must not
		// lead this pod's flows past the queues.
		dp, err = j.OpenExisting(ctx, j.a)
	}
	if err == nil {
		j.dp = dp
	}
	j.s.Alone = j.dp == nil
	if req.backend == BackendEDT && j.s.Backend != BackendEDT {
		return errors.Join(cnierr.New(cnierr.CodeNoDatapath, "the edt backend cannot run on this node", j.s.Reason), dp.Close())
	}
	return nil
}

// choose returns the backend, and why it is that one. err is what opening the
// datapath said.
func choose(dp loader.Interface, err error, wanted string) (backend, reason string) {
	if wanted == BackendTBF {
		return BackendTBF, "configured"
	}
	if err != nil {
		return BackendTBF, err.Error()
	}
	if ok, why := dp.HasFQ(); !ok {
		return BackendTBF, why
	}
	if wanted == BackendEDT {
		return BackendEDT, "configured"
	}
	return BackendEDT, "the kernel has sch_fq and the datapath runs"
}

// plan fills in what will be made, before any of it is.
func (j *job) plan(req *request) error {
	j.s.NetNS = j.dev.ns.Inode()
	j.s.Ingress, j.s.Egress, j.s.Subnets = req.ingress, req.egress, req.subnets
	j.s.Policed = j.s.Egress != nil && j.s.Backend == BackendEDT
	if j.dev.host.Index != 0 {
		j.s.HostIfName, j.s.HostIfindex = j.dev.host.Name, j.dev.host.Index
		j.s.OffFastPath = j.s.Policed && j.dp.PodByLink(j.dev.host.Index)
	}
	if !j.s.needsIFB() {
		return nil
	}
	at := j.ifbHome()
	j.s.IFB = referenceIFB(j.ref)
	if _, err := at.ifbSide(j.s.IFB); !errors.Is(err, rtnl.ErrNotFound) {
		// Another interface of the container has it, maybe one of upstream's plugin.
		j.s.IFB = ownIFB(j.ref)
		return cnierr.Wrap(cnierr.CodeKernel, delIFB(at, j.s.IFB), "remove what a killed ADD has left")
	}
	return nil
}

// needsIFB says whether something is limited where it arrives.
func (s *section) needsIFB() bool {
	if s.inside() {
		return s.Ingress != nil
	}
	return s.Egress != nil && s.Backend == BackendTBF
}

// ifbHome is the device whose arriving packets go to the IFB.
func (j *job) ifbHome() side {
	if j.s.inside() {
		return j.dev.podSide()
	}
	return j.dev.hostSide()
}

// apply makes what plan says. The endpoint comes first: its clsact carries the
// programs of all features.
func (j *job) apply(ctx context.Context, addrs []netip.Prefix) error {
	if err := j.enable(ctx, addrs); err != nil {
		return err
	}
	if err := j.applyIngress(ctx); err != nil {
		return wrapKernel(err, "limit the ingress of %s", j.a.IfName)
	}
	return wrapKernel(j.applyEgress(ctx), "limit the egress of %s", j.a.IfName)
}

func (j *job) applyIngress(ctx context.Context) (err error) {
	switch {
	case j.s.Ingress == nil:
		return nil
	case j.s.inside():
		j.s.Clsact, err = putIFB(j.dev.podSide(), j.s.IFB, j.s.Ingress, j.s.Subnets, rtnl.Source, &j.rb)
		return err
	case j.s.Backend == BackendEDT:
		return j.putEDT(ctx, j.dev.hostSide(), ingressShape(j.dev, &j.s))
	}
	return putTBF(j.dev.hostSide(), j.s.Ingress, j.s.Subnets, rtnl.Source, &j.rb)
}

func (j *job) applyEgress(ctx context.Context) (err error) {
	switch {
	case j.s.Egress == nil:
		return nil
	case j.s.Backend == BackendEDT:
		if err := j.putEDT(ctx, j.dev.podSide(), egressShape(j.dev, &j.s)); err != nil {
			return err
		}
		return j.putPolicer(ctx)
	case j.s.inside():
		return putTBF(j.dev.podSide(), j.s.Egress, j.s.Subnets, rtnl.Destination, &j.rb)
	}
	j.s.Clsact, err = putIFB(j.dev.hostSide(), j.s.IFB, j.s.Egress, j.s.Subnets, rtnl.Destination, &j.rb)
	return err
}

// checkFree refuses an address of another pod before the first effect.
func (j *job) checkFree(ctx context.Context, addrs []netip.Prefix) error {
	if j.dp == nil || j.s.features() == 0 {
		return nil
	}
	return backend.EnableError(j.dp.CheckFree(ctx, j.ref.Owner(), addrs), j.Records.List, "look whose the address is")
}

// enable keeps the pod's flows on the ways that have a qdisc.
func (j *job) enable(ctx context.Context, addrs []netip.Prefix) error {
	f := j.s.features()
	if j.dp == nil || f == 0 || len(addrs) == 0 {
		return nil
	}
	ep, err := loader.Resolve(ctx, j.a.Netns, j.a.IfName)
	if err != nil {
		return backend.ResolveError(err, j.a.IfName, cnierr.CodeKernel)
	}
	ep.Ref, ep.Addrs = j.ref, addrs
	j.rb.Push("queue features", func(ctx context.Context) error { return j.dp.Disable(ctx, j.ref.Owner(), f, j.s.held()) })
	return backend.EnableError(j.dp.Enable(ctx, ep, f), j.Records.List, "attach %s to the datapath", j.a.IfName)
}

// wrapKernel gives an error of a qdisc or a program its code: a place that
// another program has taken is a conflict.
func wrapKernel(err error, format string, a ...any) error {
	if errors.Is(err, rtnl.ErrExist) || errors.Is(err, loader.ErrConflict) {
		return cnierr.Wrap(cnierr.CodeConflict, err, format, a...)
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, format, a...)
}

// say puts into the log what the operator did not write.
func (j *job) say() {
	if len(j.noBurst) > 0 {
		j.a.Log.Warn("a burst is absent or the largest number of its type: it was derived from the rate, see sluice bandwidth",
			log.Any(log.KeyKey, j.noBurst))
	}
	j.a.Log.Info("limited", log.String(log.KeyBackend, j.s.Backend), log.String(log.KeyReason, j.s.Reason))
}

// ifbOnNode is the intermediate device as the result shows it.
func (j *job) ifbOnNode() (*types100.Interface, error) {
	if j.s.IFB == "" || j.s.inside() {
		return nil, nil // "none" is an answer
	}
	l, err := j.dev.out.LinkByName(j.s.IFB)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "find %s", j.s.IFB)
	}
	return &types100.Interface{Name: l.Name, Mac: l.MAC.String()}, nil
}
