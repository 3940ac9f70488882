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
	return addrsOn(result, func(i *types100.Interface) bool { return i.Name == ifname && i.Sandbox != "" })
}

// NamedAddrs is PodAddrs for who goes by the name alone, as upstream's sbr
// does: not every plugin says which interface is in the pod.
func NamedAddrs(result *types100.Result, ifname string) []netip.Prefix {
	return addrsOn(result, func(i *types100.Interface) bool { return i.Name == ifname })
}

func addrsOn(result *types100.Result, meant func(*types100.Interface) bool) []netip.Prefix {
	var out []netip.Prefix
	for _, ip := range result.IPs {
		// As the upstream plugins: unknown is taken for the pod's.
		if n := ip.Interface; n != nil && *n >= 0 && *n < len(result.Interfaces) && !meant(result.Interfaces[*n]) {
			continue
		}
		if p, ok := prefixOf(ip.Address); ok {
			out = append(out, p)
		}
	}
	return out
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
