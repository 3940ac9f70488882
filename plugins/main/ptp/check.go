// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"context"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// inspection is one CHECK under way.
type inspection struct {
	*request
	*cniops.Inspection
	p *plugin

	hostEnd, podEnd rtnl.Link
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same. What later plugins of a chain may change (the MTU by
// tuning, the table of a route by sbr) is compared with prevResult or not at all.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a)
	if err != nil {
		return err
	}
	return cniops.Check(ctx, a, &req.Common, p.IPAM, req.ipamType, func(i *cniops.Inspection) error {
		c := &inspection{request: req, Inspection: i, p: p}
		return c.inspect(ctx)
	})
}

// inspect goes through both ends, then through what hangs on them. An end that
// is missing ends it: the rest would only say so again.
func (c *inspection) inspect(ctx context.Context) error {
	for _, find := range []func() (bool, error){c.checkPod, c.checkHostEnd} {
		if there, err := find(); err != nil || !there {
			return err
		}
	}
	diffs, err := podiface.Check(c.Pod, c.podEnd, c.Prev)
	c.Add(diffs...)
	if err != nil {
		return err
	}
	if err := c.checkPlan(); err != nil {
		return err
	}
	if c.IPMasq {
		ep := endpoint(c.ref, c.hostEnd, c.podEnd, cniconf.PodAddrs(c.Prev, c.args.IfName))
		c.Add(c.p.masq().Check(ctx, c.args, ep, c.Conf, c.p.loadSection(c.ref).Masquerade))
	}
	return nil
}

// find looks an end up and compares it with prevResult; a missing one is a
// difference.
func (c *inspection) find(what, sandbox string, get func() (rtnl.Link, error)) (rtnl.Link, bool, error) {
	l, there, err := c.Find(what, get)
	if err != nil || !there {
		return l, there, err
	}
	switch {
	case !l.Paired():
		c.Differ("%s is neither veth nor netkit", what)
		return l, false, nil
	case !l.Up:
		c.Differ("%s is down", what)
	}
	c.Add(cniops.Differences(l, c.Prev, sandbox)...)
	return l, true, nil
}

func (c *inspection) checkPod() (there bool, err error) {
	name := c.args.IfName
	c.podEnd, there, err = c.find(name+" in the pod", c.args.Netns, func() (rtnl.Link, error) { return c.Pod.LinkByName(name) })
	return there, err
}

func (c *inspection) checkHostEnd() (there bool, err error) {
	c.hostEnd, there, err = c.find("the host end of "+c.args.IfName, "", func() (rtnl.Link, error) { return c.Host.LinkByIndex(c.podEnd.PeerIndex) })
	if err != nil || !there {
		return there, err
	}
	if c.hostEnd.PeerIndex != c.podEnd.Index {
		c.Differ("%s is not the other end of %s", c.hostEnd.Name, c.args.IfName)
		return false, nil
	}
	if c.MTU != 0 && c.hostEnd.MTU != c.MTU { // the pod's may have been tuned
		c.Differ("%s has the MTU %d, not %d", c.hostEnd.Name, c.hostEnd.MTU, c.MTU)
	}
	return true, nil
}

// checkPlan compares what ADD derived from the result: the routes to and by the
// gateways, and the host's side.
func (c *inspection) checkPlan() error {
	own := cniconf.PodAddrs(c.Prev, c.args.IfName)
	res := &types100.Result{}
	var addrs []netip.Prefix
	for _, ip := range c.Prev.IPs {
		if p, ok := ipam.Prefix(&ip.Address); ok && slices.Contains(own, p) {
			one := *ip
			one.Gateway = gatewayOf(ip, p)
			addrs, res.IPs = append(addrs, p), append(res.IPs, &one)
		}
	}
	want, err := planFor(res, addrs, c.hostEnd.Index, c.podEnd.Index)
	if err != nil {
		c.Add(err)
		return nil
	}
	if err := c.checkRoutes(c.Pod, "the pod", want.podRoutes); err != nil {
		return err
	}
	if err := c.checkRoutes(c.Host, "the node", want.hostRoutes); err != nil {
		return err
	}
	have, err := c.Host.AddrsOf(c.hostEnd.Index, rtnl.FamilyAll)
	if err != nil {
		return err
	}
	for _, w := range want.hostAddrs {
		if !slices.ContainsFunc(have, func(a rtnl.Addr) bool { return a.Prefix == w.Prefix }) {
			c.Differ("%s does not have the gateway address %s", c.hostEnd.Name, w.Prefix)
		}
	}
	for _, key := range veth.ForwardKeys(c.hostEnd.Name, addrs) {
		if v, err := sysctl.Get(key); err != nil || v == "0" {
			c.Differ("forwarding is off: %s", key)
		}
	}
	return nil
}

// checkRoutes looks for routes, in any table: a later plugin may have moved the
// pod's.
func (c *inspection) checkRoutes(h *rtnl.Handle, who string, want []rtnl.Route) error {
	if len(want) == 0 {
		return nil
	}
	have, err := h.RoutesWhere(rtnl.RouteFilter{LinkIndex: want[0].LinkIndex})
	if err != nil {
		return err
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(r rtnl.Route) bool { return r.Dst == w.Dst && (!w.Gateway.IsValid() || r.Gateway == w.Gateway) }) {
			c.Differ("%s has no route to %s", who, w)
		}
	}
	return nil
}
