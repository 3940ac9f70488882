// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// checking is one CHECK at work.
type checking struct {
	ref attachments.ID
	dev *device
	dp  loader.Interface // nil: none is loaded
	s   *section
}

// check compares the record with the configuration, and every qdisc, filter,
// program and feature with the record. It changes nothing.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := p.parse(a)
	if err != nil {
		return err
	}
	prev, err := req.conf.Chained()
	if err != nil {
		return err
	}
	if req.nothing() {
		return nil
	}
	s, unrecorded := p.recorded(req, a)
	if unrecorded != nil && !errors.Is(unrecorded, attachments.ErrNotExist) {
		return unrecorded
	}
	c := &checking{ref: a.Ref(req.conf.Name), s: s}
	if c.dev, err = openDevice(a.Netns, a.IfName, cnierr.CodeCheck); err != nil {
		return err
	}
	defer c.dev.Close()
	if unrecorded != nil {
		if c.s = referenceSection(req, c); c.s.inside() {
			return unrecorded
		}
		s = c.s
	}
	if c.dev.host.Index != s.HostIfindex {
		return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("the host end of %s is another device than ADD found", a.IfName), "")
	}
	c.dp, err = p.OpenExisting(ctx, a)
	switch {
	case err == nil:
		defer c.dp.Close()
	case errors.Is(err, loader.ErrNotLoaded), errors.Is(err, loader.ErrUnavailable):
		c.dp = nil
	default:
		return p.OpenError(err, cnierr.CodeNoDatapath)
	}
	err = errors.Join(c.ingress(ctx), c.egress(ctx), c.features(ctx, a, cniconf.PodAddrs(prev, a.IfName)))
	return cnierr.Wrap(cnierr.CodeCheck, err, "the limits of %s differ from the configuration", a.IfName)
}

// referenceSection is what the record would say of a pod of upstream's plugin,
// which keeps none.
func referenceSection(req *request, c *checking) *section {
	s := &section{
		Backend: BackendTBF, Ingress: req.ingress.literal(req.rates.IngressBurst), Egress: req.egress.literal(req.rates.EgressBurst),
		Subnets: req.subnets, HostIfindex: c.dev.host.Index,
	}
	if s.Egress != nil {
		s.IFB = referenceIFB(c.ref)
	}
	return s
}

// literal is the limit with the burst that was sent, in bits, whatever it stands for: upstream derives none.
func (l *Limit) literal(burst *uint64) *Limit {
	if l == nil || !l.Derived || deref(burst) < bitsPerByte {
		return l
	}
	return &Limit{Rate: l.Rate, Burst: uint32(*burst / bitsPerByte)}
}

// recorded returns what ADD has made, if that is what the configuration asks for.
func (p *plugin) recorded(req *request, a *cniskel.Args) (*section, error) {
	rec, err := p.Records.Load(a.Ref(req.conf.Name))
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeCheck, err, "%s is not limited", a.IfName)
	}
	var s section
	if ok, err := rec.Section(Name, &s); !ok || err != nil {
		return nil, cnierr.Wrap(cnierr.CodeCheck, errors.Join(err, store404(ok)), "%s is not limited", a.IfName)
	}
	if req.backend != BackendAuto && req.backend != s.Backend {
		return nil, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("the backend is %s, not %s", s.Backend, req.backend), "")
	}
	if !reflect.DeepEqual(s.Ingress, req.ingress) || !reflect.DeepEqual(s.Egress, req.egress) || !reflect.DeepEqual(s.Subnets, req.subnets) {
		return nil, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("%s is limited to other rates than the configuration's", a.IfName), "")
	}
	return &s, nil
}

func store404(ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w with a section \"bandwidth\"", attachments.ErrNotExist)
}

func (c *checking) ingress(ctx context.Context) error {
	s := c.s
	switch {
	case s.Ingress == nil:
		return nil
	case s.inside():
		return checkIFB(c.dev.podSide(), s.IFB, s.Ingress, s.Subnets, rtnl.Source)
	case s.Backend == BackendEDT:
		return c.checkEDT(ctx, c.dev.hostSide(), ingressShape(c.dev, s))
	}
	return checkTBF(c.dev.hostSide(), s.Ingress, s.Subnets, rtnl.Source)
}

func (c *checking) egress(ctx context.Context) error {
	s := c.s
	switch {
	case s.Egress == nil:
		return nil
	case s.Backend == BackendEDT:
		err := c.checkEDT(ctx, c.dev.podSide(), egressShape(c.dev, s))
		if s.Policed {
			err = errors.Join(err, c.checkPolicer(ctx))
		}
		return err
	case s.inside():
		return checkTBF(c.dev.podSide(), s.Egress, s.Subnets, rtnl.Destination)
	}
	return checkIFB(c.dev.hostSide(), s.IFB, s.Egress, s.Subnets, rtnl.Destination)
}

// features looks whether the datapath still leads the pod's flows by the qdiscs. A
// node without datapath has no other way.
func (c *checking) features(ctx context.Context, a *cniskel.Args, addrs []netip.Prefix) error {
	f := c.s.features()
	if c.dp == nil || f == 0 || len(addrs) == 0 {
		return nil
	}
	ep, err := loader.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		return err
	}
	ep.Ref, ep.Addrs = c.ref, addrs
	if c.s.Alone {
		// Another network may have loaded the datapath since: it leads no pod past the queues that it does not know.
		all, err := c.dp.Endpoints(ctx)
		known := slices.ContainsFunc(all, func(e loader.EndpointStatus) bool { return e.Owner == c.ref.Owner() })
		if err != nil || !known {
			return err
		}
	}
	return c.dp.CheckEndpoint(ctx, ep, f)
}
