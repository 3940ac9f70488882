// SPDX-License-Identifier: Apache-2.0

// Package static is the static IPAM plugin: it hands out the addresses, routes
// and DNS settings that the configuration, CNI_ARGS or the runtime name.
//
// It keeps no state: nothing tells it whether another pod has an address, and
// DEL and GC have nothing to give back. It sees neither netlink nor BPF.
package static

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type in a configuration.
const Name = "static"

// New returns the plugin. Its DEL succeeds whatever the configuration says, and
// its GC has nothing to collect.
func New() *cniskel.Plugin {
	nothing := func(context.Context, *cniskel.Args) error { return nil }
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.All(),
		Add: add, Del: nothing, Check: check, GC: nothing, Status: status,
	}
}

// add returns the addresses. None at all is an error here, since every interface
// plugin would fail on such a result, after it has made its interface.
func add(_ context.Context, a *cniskel.Args) (types.Result, error) {
	c, err := load(a)
	if err != nil {
		return nil, err
	}
	if len(c.addrs) == 0 {
		return nil, cnierr.New(cnierr.CodeConfig,
			"no address: give one in ipam.addresses, CNI_ARGS IP, args.cni.ips or runtimeConfig.ips", "")
	}
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes, DNS: c.dns}
	for _, e := range c.addrs {
		out.IPs = append(out.IPs, e.ipConfig())
	}
	return cniconf.Convert(out, c.version)
}

func (e address) ipConfig() *types100.IPConfig {
	ip := &types100.IPConfig{Address: net.IPNet{
		IP:   e.prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(e.prefix.Bits(), e.prefix.Addr().BitLen()),
	}}
	if e.gateway.IsValid() {
		ip.Gateway = e.gateway.AsSlice()
	}
	return ip
}

// check compares with prevResult: each address must be in it, with its prefix
// length and, where one is configured, its gateway. A gateway that the interface
// plugin added is its own business.
func check(_ context.Context, a *cniskel.Args) error {
	c, err := load(a)
	if err != nil {
		return err
	}
	prev, err := cniconf.PrevResult(a.StdinData, c.version)
	if err != nil {
		return err
	}
	if prev == nil {
		return cnierr.New(cnierr.CodeConfig, `missing key "prevResult": CHECK compares with it`, "")
	}
	for _, e := range c.addrs {
		if err := e.compare(prev); err != nil {
			return err
		}
	}
	return nil
}

func (e address) compare(prev *types100.Result) error {
	for _, ip := range prev.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok || addr.Unmap() != e.prefix.Addr() {
			continue
		}
		if ones, _ := ip.Address.Mask.Size(); ones != e.prefix.Bits() {
			return differs(e, fmt.Sprintf("prevResult has it with the prefix length %d", ones))
		}
		gw, _ := netip.AddrFromSlice(ip.Gateway)
		if e.gateway.IsValid() && gw.Unmap() != e.gateway {
			return differs(e, fmt.Sprintf("its gateway in prevResult is %q, not %s", ip.Gateway, e.gateway))
		}
		return nil
	}
	return differs(e, "it is not in prevResult")
}

func differs(e address, why string) error {
	return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("address %s: %s", e.prefix, why), "")
}

// status says whether the configuration is one ADD accepts. It may come without
// addresses: the runtime gives those of CNI_ARGS and runtimeConfig to ADD only.
func status(_ context.Context, a *cniskel.Args) error {
	_, err := load(a)
	return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
}
