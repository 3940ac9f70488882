// SPDX-License-Identifier: Apache-2.0

package inpod

import (
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/nl"
)

// AddRoutes adds the routes in their order and tells each of each, with its
// error. The next hops of a multipath route go in together, as one route.
func (p *Pod) AddRoutes(routes []nl.Route, each func(nl.Route, error)) {
	for len(routes) > 0 {
		r, hops := routes[0], 1
		for r.Multipath && hops < len(routes) && oneRoute(r, routes[hops]) && routes[hops].LinkIndex == r.LinkIndex {
			hops++
		}
		if hops == 1 {
			each(r, p.AddRoute(r))
		} else {
			var gateways []netip.Addr
			for _, hop := range routes[:hops] {
				gateways = append(gateways, hop.Gateway)
			}
			each(r, p.AddMultipath(r, gateways))
		}
		routes = routes[hops:]
	}
}

// SharedRoute reports that r is a next hop of a multipath route, one of the list,
// that cannot be moved with its interface: another one has a part in it, or a hop
// has no gateway.
func SharedRoute(r nl.Route, list []nl.Route) bool {
	return r.Multipath && slices.ContainsFunc(list, func(o nl.Route) bool {
		return oneRoute(r, o) && (o.LinkIndex != r.LinkIndex || !o.Gateway.IsValid())
	})
}

// oneRoute reports that two next hops are of one multipath route.
func oneRoute(a, b nl.Route) bool {
	a.Gateway, a.LinkIndex = b.Gateway, b.LinkIndex
	return a == b
}
