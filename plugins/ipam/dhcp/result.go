// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// defaultLeaseTime is for servers that do not say.
const defaultLeaseTime = time.Hour

// resultOf turns a server's ACK into a result. priority, if not 0, is the
// metric of every route.
func resultOf(ack *dhcpv4.DHCPv4, priority int) (*types100.Result, error) {
	addr, err := addressOf(ack)
	if err != nil {
		return nil, err
	}
	ip := &types100.IPConfig{Address: *addr}
	if routers := ack.Router(); len(routers) > 0 {
		ip.Gateway = routers[0]
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs:        []*types100.IPConfig{ip},
		Routes:     routesOf(ack),
		DNS:        dnsOf(ack),
	}
	for _, r := range res.Routes {
		r.Priority = priority
	}
	return res, nil
}

// addressOf is the leased address with its mask.
func addressOf(ack *dhcpv4.DHCPv4) (*net.IPNet, error) {
	mask := ack.SubnetMask()
	if ones, bits := mask.Size(); len(mask) != net.IPv4len || ones == 0 && bits == 0 {
		return nil, errors.New("the server's answer has no valid subnet mask (option 1); is it left out of \"request\"?")
	}
	yours := ack.YourIPAddr.To4()
	if yours == nil || yours.IsUnspecified() {
		return nil, fmt.Errorf("the server's answer has no address: %v", ack.YourIPAddr)
	}
	addr := &net.IPNet{IP: yours, Mask: mask}
	if why := noHost(addr); why != "" {
		return nil, fmt.Errorf("the server's answer has the address %s: %s", addr, why)
	}
	return addr, nil
}

// noHost says why no host has an address. 240.0.0.0/4 is in use, and Linux takes it for unicast.
func noHost(addr *net.IPNet) string {
	ones, bits := addr.Mask.Size()
	last := slices.Clone(addr.IP)
	for i := range last {
		last[i] |= ^addr.Mask[i]
	}
	switch {
	case addr.IP.IsLoopback():
		return "a loopback address"
	case addr.IP.IsMulticast():
		return "a multicast address"
	case addr.IP.Equal(net.IPv4bcast):
		return "the broadcast address"
	case addr.IP[0] == 0:
		return "0.0.0.0/8 has no hosts"
	case ones <= bits-2 && addr.IP.Equal(addr.IP.Mask(addr.Mask)):
		return "the address of the network itself"
	case ones <= bits-2 && addr.IP.Equal(last):
		return "the broadcast address of the network"
	}
	return ""
}

// routesOf reads the classless routes (RFC 3442), which make the client ignore
// the routers and the routes of the old kind; else both of these.
func routesOf(ack *dhcpv4.DHCPv4) []*types.Route {
	var routes []*types.Route
	if classless := ack.ClasslessStaticRoute(); len(classless) > 0 {
		for _, c := range classless {
			// Bits beyond the mask do not count, and no kernel takes them.
			r := &types.Route{Dst: net.IPNet{IP: c.Dest.IP.Mask(c.Dest.Mask), Mask: c.Dest.Mask}, GW: c.Router}
			if c.Router.IsUnspecified() {
				// On the link itself (RFC 3442, "Local Subnet Routes").
				link := unix.RT_SCOPE_LINK
				r.GW, r.Scope = net.IPv4zero.To4(), &link
			}
			routes = append(routes, r)
		}
		return routes
	}
	routes = append(routes, classfulRoutes(ack.Options.Get(dhcpv4.OptionStaticRoutingTable))...)
	if routers := ack.Router(); len(routers) > 0 {
		routes = append(routes, &types.Route{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, GW: routers[0]})
	}
	return routes
}

// classfulRoutes reads option 33 (RFC 2132 5.8): pairs of destination and
// router, the mask being that of the destination's class.
func classfulRoutes(b []byte) []*types.Route {
	var routes []*types.Route
	for ; len(b) >= 2*net.IPv4len; b = b[2*net.IPv4len:] {
		dst, gw := net.IP(b[:4:4]), net.IP(b[4:8:8])
		mask := dst.DefaultMask()
		if mask == nil || dst.IsUnspecified() {
			continue // class D or E, or a default route, which the option must not hold
		}
		routes = append(routes, &types.Route{Dst: net.IPNet{IP: dst.Mask(mask), Mask: mask}, GW: gw})
	}
	return routes
}

// dnsOf is what the server says of name resolution, which upstream drops.
func dnsOf(ack *dhcpv4.DHCPv4) types.DNS {
	dns := types.DNS{Domain: strings.TrimRight(ack.DomainName(), "\x00")}
	for _, ip := range ack.DNS() {
		dns.Nameservers = append(dns.Nameservers, ip.String())
	}
	if search := ack.DomainSearch(); search != nil {
		dns.Search = search.Labels
	}
	return dns
}

// times are the deadlines of a lease (RFC 2131 4.4.5).
type times struct{ renew, rebind, expire time.Time }

// timesOf counts from the moment the request was answered.
func timesOf(ack *dhcpv4.DHCPv4, from time.Time) times {
	whole := ack.IPAddressLeaseTime(defaultLeaseTime)
	t1 := ack.IPAddressRenewalTime(whole / 2)
	t2 := ack.IPAddressRebindingTime(whole / 100 * 85)
	if t2 > whole || t2 <= 0 {
		t2 = whole / 100 * 85
	}
	if t1 > t2 || t1 <= 0 {
		t1 = min(whole/2, t2)
	}
	return times{renew: from.Add(t1), rebind: from.Add(t2), expire: from.Add(whole)}
}
