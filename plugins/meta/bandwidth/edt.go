// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// The limits of the fair queue: not what limits the wait, which is measured in
// time by the program before it. One flow may fill it, as it may fill a link.
const (
	fqLimit     = 20000
	fqFlowLimit = 20000
)

func fqRoot() rtnl.Qdisc {
	return rtnl.Qdisc{
		Kind: rtnl.QdiscFQ, Handle: rootHandle(), Parent: rtnl.ParentRoot,
		FQ: &rtnl.FQ{Limit: fqLimit, FlowLimit: fqFlowLimit},
	}
}

// putPolicer holds the pod to the egress limit where it cannot bypass it, at
// the host veth or at the parent of the pod's device. A device of the host has
// neither. RemoveRateLimit of putEDT takes it back.
func (j *job) putPolicer(ctx context.Context) error {
	s := policerShape(j.dev, &j.s)
	s.Ref = j.ref
	err := j.dp.SetRateLimit(ctx, s)
	if s.Netns != "" && errors.Is(err, loader.ErrNoDevice) {
		j.s.Policed = false
		return nil
	}
	return err
}

// putEDT limits what leaves at: by an fq qdisc, and the program that writes
// departure times above it.
func (j *job) putEDT(ctx context.Context, at side, s loader.RateLimit) error {
	q := fqRoot()
	if err := at.h.AddQdisc(at.index, q, false); err != nil {
		return err
	}
	j.rb.Push("fq qdisc", func(context.Context) error { return at.h.DelQdisc(at.index, q) })
	j.rb.Push("departure times", func(ctx context.Context) error { return j.dp.RemoveRateLimit(ctx, j.ref.Owner(), j.s.networks()) })
	s.Ref = j.ref
	return j.dp.SetRateLimit(ctx, s)
}

// ingressShape is the limit on what the host veth sends into the pod.
func ingressShape(d *device, s *section) loader.RateLimit {
	return loader.RateLimit{
		Ifindex: d.host.Index, IfName: d.host.Name,
		Rate: s.Ingress.Rate, Burst: s.Ingress.Burst, Shaped: s.Subnets.Shaped, Unshaped: s.Subnets.Unshaped,
	}
}

// egressShape is the limit on what the pod sends.
func egressShape(d *device, s *section) loader.RateLimit {
	return loader.RateLimit{
		Egress: true, Netns: d.ns.Path(), Ifindex: d.pod.Index, IfName: d.pod.Name,
		Rate: s.Egress.Rate, Burst: s.Egress.Burst, Shaped: s.Subnets.Shaped, Unshaped: s.Subnets.Unshaped,
	}
}

// policerShape is the same limit at the host veth, or at the parent device.
func policerShape(d *device, s *section) loader.RateLimit {
	shape := egressShape(d, s)
	shape.Police = true
	if d.host.Index != 0 {
		shape.Netns, shape.Ifindex, shape.IfName = "", d.host.Index, d.host.Name
	}
	return shape
}

// checkFQ looks for the qdisc of putEDT.
func checkFQ(at side) error {
	q, err := at.h.RootQdisc(at.index)
	if err != nil {
		return err
	}
	if q.Kind != rtnl.QdiscFQ {
		return fmt.Errorf("the root qdisc is %s, want fq", q.Kind)
	}
	if q.FQ.Limit != fqLimit || q.FQ.FlowLimit != fqFlowLimit {
		return fmt.Errorf("the root qdisc is fq %+v, want %+v", *q.FQ, *fqRoot().FQ)
	}
	return nil
}

// checkEDT compares what is there with what putEDT makes.
func (c *checking) checkEDT(ctx context.Context, at side, s loader.RateLimit) error {
	s.Ref = c.ref
	if c.dp == nil {
		return errors.Join(checkFQ(at), loader.ErrNotLoaded)
	}
	return errors.Join(checkFQ(at), c.dp.CheckRateLimit(ctx, s))
}

// checkPolicer compares what is there with what putPolicer makes. Programs of
// tcx run before it, so that the pod must not take the fast path.
func (c *checking) checkPolicer(ctx context.Context) error {
	if c.dp == nil {
		return loader.ErrNotLoaded
	}
	s := policerShape(c.dev, c.s)
	s.Ref = c.ref
	err := c.dp.CheckRateLimit(ctx, s)
	if s.Netns == "" && !c.s.OffFastPath && c.dp.PodByLink(s.Ifindex) {
		err = errors.Join(err, fmt.Errorf("the fast path bypasses the policer on %s: programs of pods hang by tcx now", s.IfName))
	}
	return err
}
