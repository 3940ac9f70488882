// SPDX-License-Identifier: Apache-2.0

package podiface

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Routes returns a result's routes on the device with that index, each once:
// IPAM plugins with several ranges repeat theirs. A route without a gateway goes
// by the first gateway of its family.
func Routes(res *types100.Result, index int) ([]rtnl.Route, error) {
	routes := make([]rtnl.Route, 0, len(res.Routes))
	seen := make(map[rtnl.Route]bool, len(res.Routes))
	for _, r := range res.Routes {
		route, err := routeOf(res, r, index)
		if err != nil {
			return nil, err
		}
		if !seen[route] {
			seen[route] = true
			routes = append(routes, route)
		}
	}
	return routes, nil
}

func routeOf(res *types100.Result, r *types.Route, index int) (rtnl.Route, error) {
	dst, ok := ipam.Prefix(&r.Dst)
	if !ok {
		return rtnl.Route{}, badRoute(r, "dst", r.Dst.String())
	}
	route := rtnl.Route{LinkIndex: index, Dst: dst.Masked(), Gateway: ipam.Addr(r.GW)}
	if !route.Gateway.IsValid() {
		route.Gateway = firstGateway(res, dst.Addr().Is4())
	}
	table, scope := 0, 0
	if r.Table != nil {
		table = *r.Table
	}
	if r.Scope != nil {
		scope = *r.Scope
	}
	for _, f := range []struct {
		key  string
		v    int
		most int64
		into *int
	}{
		{"table", table, math.MaxUint32, &route.Table}, {"scope", scope, math.MaxUint8, nil},
		{"priority", r.Priority, math.MaxUint32, &route.Priority},
		{"mtu", r.MTU, math.MaxUint32, &route.MTU}, {"advmss", r.AdvMSS, math.MaxUint32, &route.AdvMSS},
	} {
		if f.v < 0 || int64(f.v) > f.most {
			return rtnl.Route{}, badRoute(r, f.key, f.v)
		}
		if f.into != nil {
			*f.into = f.v
		}
	}
	route.Scope = uint8(scope)
	return route, nil
}

// together joins IPv4 routes that differ in their gateways only, for rtnl's AddHops. The kernel
// would use the last of them alone. It joins IPv6 routes itself.
func together(routes []rtnl.Route) [][]rtnl.Route {
	var out [][]rtnl.Route
	for _, r := range routes {
		i := -1
		if r.Dst.Addr().Is4() && r.Gateway.IsValid() {
			i = slices.IndexFunc(out, func(hops []rtnl.Route) bool {
				return hops[0].Gateway.IsValid() && hops[0].LinkIndex == r.LinkIndex && r.SharesHops(hops[0])
			})
		}
		if i < 0 {
			out = append(out, []rtnl.Route{r})
			continue
		}
		out[i] = append(out[i], r)
	}
	return out
}

func badRoute(r *types.Route, key string, value any) error {
	return cnierr.New(cnierr.CodeDecode, fmt.Sprintf("the IPAM plugin returned a route to %s with %s %v", r.Dst.String(), key, value), "")
}

func firstGateway(res *types100.Result, v4 bool) netip.Addr {
	for _, ip := range res.IPs {
		if gw := ipam.Addr(ip.Gateway); gw.IsValid() && gw.Is4() == v4 {
			return gw
		}
	}
	return netip.Addr{}
}

// Check compares what prev gives to the interface with what it has. Each
// difference is an error with code 102. Routes count in whatever table they are:
// a later plugin of the chain may have moved them.
func Check(pod *rtnl.Handle, link rtnl.Link, prev *types100.Result) ([]error, error) {
	diffs, err := checkAddrs(pod, link, prev)
	if err != nil || len(prev.Routes) == 0 {
		return diffs, err
	}
	have, err := pod.AllRoutes(rtnl.FamilyAll)
	if err != nil {
		return diffs, err
	}
	for _, r := range prev.Routes {
		want, err := routeOf(prev, r, 0)
		if err != nil {
			continue // no plugin has made it
		}
		want.Gateway = ipam.Addr(r.GW) // one that ADD has filled in may be another's by now
		if want.Gateway.IsValid() && want.Gateway.IsUnspecified() {
			want.Gateway = netip.Addr{} // on the link, as DHCP option 121 says it
		}
		if !slices.ContainsFunc(have, func(h rtnl.Route) bool { return serves(h, want) }) {
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, "the pod has no route to "+describe(want), ""))
		}
	}
	return diffs, nil
}

func checkAddrs(pod *rtnl.Handle, link rtnl.Link, prev *types100.Result) ([]error, error) {
	have, err := pod.AddrsOf(link.Index, rtnl.FamilyAll)
	if err != nil {
		return nil, err
	}
	var diffs []error
	for _, w := range cniconf.PodAddrs(prev, link.Name) {
		i := slices.IndexFunc(have, func(a rtnl.Addr) bool { return a.Prefix == w })
		switch {
		case i < 0:
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("%s does not have the address %s", link.Name, w), ""))
		case have[i].DADFailed(): // the kernel keeps it, and does not use it
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("duplicate address detection found another host with the address %s of %s", w, link.Name), ""))
		}
	}
	return diffs, nil
}

// serves reports that h is what want asks for; what want leaves open may be anything.
func serves(h, want rtnl.Route) bool {
	return h.Dst == want.Dst &&
		(!want.Gateway.IsValid() || h.Gateway == want.Gateway) &&
		(want.Priority == 0 || h.Priority == want.Priority) &&
		(want.MTU == 0 || h.MTU == want.MTU) &&
		(want.AdvMSS == 0 || h.AdvMSS == want.AdvMSS)
}

func describe(r rtnl.Route) string {
	s := rtnl.Route{Dst: r.Dst, Gateway: r.Gateway}.String()
	for _, f := range []struct {
		key string
		v   int
	}{{"priority", r.Priority}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}} {
		if f.v != 0 {
			s += fmt.Sprintf(" %s %d", f.key, f.v)
		}
	}
	return s
}
