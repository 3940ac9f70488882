// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Chained returns the previous result of a plugin that cannot be first in a
// chain, as the newest type. A missing one is an error with code 7.
func (c *Common) Chained() (*types100.Result, error) {
	prev, err := ParseResult("prevResult", c.RawPrevResult, c.Version())
	if err != nil {
		return nil, err
	}
	if prev == nil {
		return nil, cnierr.New(cnierr.CodeConfig, "missing key \"prevResult\": "+c.Type+" must run after the plugin that makes the interface", "")
	}
	return prev, nil
}

// PodAddrs returns the addresses, with their prefix lengths, that a result
// gives to the pod's interface ifname: those that point to an entry of that
// name with a sandbox, and those that point to no entry of the list.
func PodAddrs(result *types100.Result, ifname string) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range result.IPs {
		if !onInterface(result, ip, ifname) {
			continue
		}
		if p, ok := prefixOf(ip.Address); ok {
			out = append(out, p)
		}
	}
	return out
}

func onInterface(result *types100.Result, ip *types100.IPConfig, ifname string) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(result.Interfaces) {
		return true // as the reference plugins: unknown is taken for the pod's
	}
	i := result.Interfaces[*ip.Interface]
	return i.Name == ifname && i.Sandbox != ""
}

func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits != addr.BitLen() {
		ones = addr.BitLen() // no mask, or one of the other family
	}
	return netip.PrefixFrom(addr, ones), true
}
