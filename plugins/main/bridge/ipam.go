// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// podInterface is the index of the pod's end in the result's interfaces.
const podInterface = 2

// allocate asks the IPAM plugin and completes its answer. The release is
// pushed first: a delegate that failed may have allocated all the same.
func (t *attach) allocate(ctx context.Context) error {
	t.result = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if t.ipamType == "" {
		return nil
	}
	t.undos.Push("address of "+t.ipamType, func(ctx context.Context) error {
		return t.p.IPAM.Del(ctx, t.args, t.ipamType)
	})
	res, err := t.p.IPAM.Add(ctx, t.args, t.ipamType)
	if err != nil {
		return err // the delegate's own code and words
	}
	if len(res.IPs) == 0 {
		return cnierr.Config("ipam.type", t.ipamType, "the IPAM plugin returned no address")
	}
	t.result.IPs, t.result.Routes, t.result.DNS = res.IPs, res.Routes, res.DNS
	return t.completeIPs()
}

// completeIPs ties the addresses to the pod's end and fills in gateways and
// default routes.
func (t *attach) completeIPs() error {
	for _, ip := range t.result.IPs {
		prefix, ok := toPrefix(&ip.Address)
		if !ok {
			return cnierr.New(cnierr.CodeDecode, "the IPAM plugin returned the address "+ip.Address.String(), "")
		}
		t.rec.Addrs = append(t.rec.Addrs, prefix)
		ip.Interface = types100.Int(podInterface)
		if ip.Gateway == nil && t.IsGateway {
			ip.Gateway = net.IP(prefix.Masked().Addr().Next().AsSlice())
		}
		if t.IsDefaultGateway && ip.Gateway != nil {
			t.result.Routes = withDefault(t.result.Routes, ip.Gateway)
		}
	}
	return nil
}

// withDefault adds a default route by gw unless its family has one. A default
// route without a gateway gets gw: a second one beside it would be the same
// route to the kernel, which then refuses it.
func withDefault(routes []*types.Route, gw net.IP) []*types.Route {
	v4 := gw.To4() != nil
	for _, r := range routes {
		dst, ok := toPrefix(&r.Dst)
		if !ok || dst.Bits() != 0 || dst.Addr().Is4() != v4 {
			continue
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

// toPrefix converts an address with its subnet; false when the two do not fit.
func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 128 && addr.Is4() && ones >= 96 {
		ones, bits = ones-96, 32
	}
	if bits != addr.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones), true
}

// toAddr converts an address; the zero Addr for none.
func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
