// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// OwnAddrs returns the addresses on lo, dummy devices and hardware. Where a pod CIDR covers one, a pod or a route would take it. Addresses
// on devices of other kinds may be meant for pods: gateways, and the ends of overlays, also those that another plugin has left.
func OwnAddrs(h *rtnl.Handle) ([]netip.Addr, error) {
	links, err := h.Links()
	if err != nil {
		return nil, err
	}
	node := make(map[int]bool)
	for _, l := range links {
		node[l.Index] = l.Kind == "" || l.Kind == "dummy"
	}
	addrs, err := h.Addrs(rtnl.FamilyAll)
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if node[a.LinkIndex] && !a.Prefix.Addr().IsLoopback() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			out = append(out, a.Prefix.Addr())
		}
	}
	return out, nil
}
