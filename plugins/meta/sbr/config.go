// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// Tables that the kernel or everybody uses; a free one is looked for elsewhere.
const (
	firstTable = 100
	defTable   = 253
	localTable = 255
)

// defaultMetric6 is what the kernel makes of metric 0 of an IPv6 route (IP6_RT_PRIO_USER).
const defaultMetric6 = 1024

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common

	Table          *int     `json:"table"`
	Gateways       []string `json:"gateways"`
	AddSourceHints bool     `json:"addSourceHints"`
}

// request is a validated call.
type request struct {
	conf
	args     *cniskel.Args
	gateways map[bool]netip.Addr // by Is4
	prev     *types100.Result
	addrs    []address
}

// address is one of the interface's, as prevResult tells.
type address struct {
	prefix     netip.Prefix
	gateway    netip.Addr // invalid: none
	configured bool       // the gateway is the configuration's, not prevResult's
}

// parse decodes and validates everything but prevResult.
func parse(a *cniskel.Args) (*request, error) {
	r := &request{args: a, gateways: map[bool]netip.Addr{}}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	if t := r.Table; t != nil && (*t < 1 || int64(*t) > 1<<32-1 || *t == localTable) {
		return nil, cnierr.Config("table", *t, "not a routing table for rules (1 to 4294967295, but not 255)")
	}
	if n := len(r.Gateways); n > 2 {
		return nil, cnierr.Config("gateways", fmt.Sprint(r.Gateways), "at most one IPv4 and one IPv6 address")
	}
	for i, s := range r.Gateways {
		key := fmt.Sprintf("gateways[%d]", i)
		gw, err := cniconf.ParseAddr(key, s)
		if err != nil {
			return nil, err
		}
		if other, taken := r.gateways[gw.Is4()]; taken {
			return nil, cnierr.Config(key, s, "a second address of one family, besides "+other.String())
		}
		r.gateways[gw.Is4()] = gw
	}
	return r, nil
}

// addresses returns what prevResult gives to the interface.
func (r *request) addresses() ([]address, error) {
	var list []address
	own := cniconf.NamedAddrs(r.prev, r.args.IfName)
	for _, p := range own {
		a := address{prefix: p}
		for _, ip := range r.prev.IPs {
			if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok && addr.Unmap() == p.Addr() {
				gw, _ := netip.AddrFromSlice(ip.Gateway)
				a.gateway = gw.Unmap()
			}
		}
		if gw, ok := r.gateways[p.Addr().Is4()]; ok {
			a.gateway, a.configured = gw, true
		}
		list = append(list, a)
	}
	if len(r.prev.IPs) == 0 {
		return nil, cnierr.New(cnierr.CodeConfig, "prevResult has no address: sbr routes by source address", "")
	}
	return list, nil
}
