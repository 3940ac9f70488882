// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// podInterface is the index of the pod's end in the result's interfaces.
const podInterface = 2

// allocate asks the IPAM plugin and completes its answer.
func (t *attach) allocate(ctx context.Context) error {
	t.result = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if t.ipamType == "" {
		return nil
	}
	res, addrs, err := ipam.Allocate(ctx, t.p.IPAM, t.args, t.ipamType, &t.rb)
	if err != nil {
		return err
	}
	t.result.IPs, t.result.Routes, t.result.DNS, t.rec.Addrs = res.IPs, res.Routes, res.DNS, addrs
	t.completeIPs()
	return nil
}

// completeIPs ties the addresses to the pod's end and fills in gateways and
// default routes.
func (t *attach) completeIPs() {
	for i, ip := range t.result.IPs {
		ip.Interface = types100.Int(podInterface)
		if ip.Gateway == nil && t.IsGateway {
			ip.Gateway = net.IP(t.rec.Addrs[i].Masked().Addr().Next().AsSlice())
		}
		if t.IsDefaultGateway && ip.Gateway != nil {
			t.result.Routes = withDefault(t.result.Routes, ip.Gateway)
		}
	}
}

// withDefault adds a default route by gw unless its family has one. A default
// route without a gateway gets gw: a second one beside it would be the same
// route to the kernel, which then refuses it.
func withDefault(routes []*types.Route, gw net.IP) []*types.Route {
	v4 := gw.To4() != nil
	for _, r := range routes {
		dst, ok := ipam.Prefix(&r.Dst)
		if !ok || dst.Bits() != 0 || dst.Addr().Is4() != v4 {
			continue
		}
		if r.GW == nil && r.Table != nil && *r.Table != 0 && *r.Table != rtnl.TableMain {
			continue // not the pod's default route
		}
		if r.GW == nil {
			r.GW = gw
		}
		return routes
	}
	all := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if v4 {
		all = net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	}
	return append(routes, &types.Route{Dst: all, GW: gw})
}
