// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// The gateways of a pod whose IPAM plugin names none. They are good on the pod's
// own link only, where no other host can have them.
var (
	linkGateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	linkGateway6 = netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1})
)

// gatewayOf returns the gateway of an address: the IPAM plugin's, if it is one
// of the same family.
func gatewayOf(ip *types100.IPConfig, addr netip.Prefix) net.IP {
	gw := ipam.Addr(ip.Gateway)
	switch {
	case gw.IsValid() && gw.Is4() == addr.Addr().Is4():
		return ip.Gateway
	case addr.Addr().Is4():
		return linkGateway4.AsSlice()
	}
	return linkGateway6.AsSlice()
}

// plan is what a result means for both ends of the pair.
type plan struct {
	hostAddrs  []rtnl.Addr  // the gateways
	hostRoutes []rtnl.Route // one to each of the pod's addresses
	podRoutes  []rtnl.Route // to the gateways, to the subnets by them, and the result's
}

// planFor makes the plan for a result whose addresses all have gateways.
// Gateways and subnets that several addresses share count once.
func planFor(res *types100.Result, addrs []netip.Prefix, hostIndex, podIndex int) (plan, error) {
	var p plan
	for i, ip := range res.IPs {
		addr, gw := addrs[i].Addr(), ipam.Addr(ip.Gateway)
		p.hostRoutes = append(p.hostRoutes, rtnl.Route{LinkIndex: hostIndex, Dst: single(addr), Scope: rtnl.ScopeLink})
		if gw == addr {
			return p, cnierr.New(cnierr.CodeDecode, "the IPAM plugin returned the pod's address "+addr.String()+" as its gateway", "")
		}
		if !slices.ContainsFunc(p.hostAddrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == gw }) {
			p.hostAddrs = append(p.hostAddrs, gatewayAddr(gw, hostIndex))
			p.podRoutes = append(p.podRoutes, rtnl.Route{LinkIndex: podIndex, Dst: single(gw), Src: addr, Scope: rtnl.ScopeLink})
		}
	}
	for i, ip := range res.IPs {
		if subnet := addrs[i].Masked(); !addrs[i].IsSingleIP() && !covers(p.podRoutes, subnet) {
			p.podRoutes = append(p.podRoutes, rtnl.Route{LinkIndex: podIndex, Dst: subnet, Gateway: ipam.Addr(ip.Gateway), Src: addrs[i].Addr()})
		}
	}
	own, err := podiface.Routes(res, podIndex)
	derived := p.podRoutes[:len(p.podRoutes):len(p.podRoutes)]
	for _, r := range own {
		// To IPv6, a route that differs in its source alone is the same one.
		if i := slices.IndexFunc(derived, func(d rtnl.Route) bool { return d.Dst == r.Dst }); i >= 0 && r.Table == 0 && r.Priority == 0 {
			p.podRoutes[i].MTU, p.podRoutes[i].AdvMSS = r.MTU, r.AdvMSS
			continue
		}
		r.Onlink = p.elsewhere(r.Gateway)
		p.podRoutes = append(p.podRoutes, r)
	}
	return p, err
}

// elsewhere reports that gw is none of the pod's gateways. No route of the plan
// leads to it, but the kernel must look for it on the link: upstream makes the
// result's routes while the subnets are still on the link.
func (p plan) elsewhere(gw netip.Addr) bool {
	return gw.IsValid() && !gw.IsUnspecified() && !slices.ContainsFunc(p.hostAddrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == gw })
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func covers(routes []rtnl.Route, dst netip.Prefix) bool {
	return slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Dst == dst })
}

// gatewayAddr is a gateway's address on the host veth. A link-local one never
// becomes the source of what the node sends elsewhere. The gateway is the node's
// by configuration: there is no other host to ask whether it is taken.
func gatewayAddr(gw netip.Addr, index int) rtnl.Addr {
	a := rtnl.Addr{LinkIndex: index, Prefix: single(gw)}
	if gw.IsLinkLocalUnicast() {
		a.Scope = rtnl.ScopeLink
	}
	if gw.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// configureHost gives the host veth its addresses and routes, and lets the node
// route. Without an IPv6 address in the pod the host veth has no use for its link-local address.
func (t *attach) configureHost(context.Context) error {
	if podiface.HasV6(t.rec.Addrs) {
		veth.NoDAD(t.args.Log, t.hostEnd.Name)
	} else {
		veth.NoLinkLocal(t.Host, t.args.Log, t.hostEnd)
	}
	for _, a := range t.plan.hostAddrs {
		if err := t.Host.AddAddr(a); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give %s the gateway address", t.hostEnd.Name)
		}
	}
	for _, r := range t.plan.hostRoutes {
		if err := t.routeToPod(r); err != nil {
			return err
		}
	}
	return veth.Forward(t.Host, t.hostEnd, t.rec.Addrs)
}

// routeToPod makes a route of the node to an address of the pod. Of two pods with
// one address, the one that has the route keeps it. A route that leads to no pod
// is a leftover and gives way.
func (t *attach) routeToPod(r rtnl.Route) error {
	err := t.Host.AddOnlyRoute(r)
	if !errors.Is(err, rtnl.ErrExist) {
		return cnierr.Wrap(cnierr.CodeKernel, err, "route to the pod")
	}
	routes, err := t.routesTo(r.Dst)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look for the route to %s", r.Dst)
	}
	for _, other := range routes {
		if other.Dst != r.Dst || other.LinkIndex == 0 || other.LinkIndex == r.LinkIndex {
			continue
		}
		l, err := t.Host.LinkByIndex(other.LinkIndex)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "look up the device of the route to %s", r.Dst)
		}
		if l.Paired() && l.PeerNetnsID >= 0 { // its other end is in a namespace that exists
			return t.p.held(r.Dst.Addr(), l)
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, t.Host.ReplaceRoute(r), "route to the pod")
}

// routesTo returns the routes of the main table to an address of the pod. Where a rule leads packets to it elsewhere, it reads the
// whole table.
func (t *attach) routesTo(dst netip.Prefix) ([]rtnl.Route, error) {
	r, err := t.Host.RouteTo(dst.Addr(), 0)
	if err == nil && r.Dst == dst && r.Table == rtnl.TableMain {
		return []rtnl.Route{r}, nil
	}
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return nil, err
	}
	return t.Host.Routes(rtnl.FamilyOf(dst.Addr()))
}

// held is the error for an address of the pod behind a host veth.
func (p *plugin) held(addr netip.Addr, host rtnl.Link) error {
	var holder *attachments.ID
	records, _ := p.Records.List("") // a record that cannot be read names no holder
	for _, rec := range records {
		var s section
		if found, err := rec.Section(Name, &s); found && err == nil && s.HostIfName == host.Name {
			holder = &rec.ID
		}
	}
	return backend.AddrHeld(addr, host.Name, holder, nil)
}

// configurePod gives the pod's end its addresses and routes and sets it up. All
// but the gateways is reached by them, so the subnets are not on the link.
func (t *attach) configurePod(ctx context.Context) error {
	i := podiface.Interface{NS: t.NS, Pod: t.Pod, Link: t.podEnd, Log: t.args.Log, NoSubnetRoute: true}
	return i.Configure(ctx, t.rec.Addrs, t.plan.podRoutes)
}
