// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// native leaves the routes to a third party.
type native struct{ base }

func (r *native) sync(Node, []Node, *Wanted) error {
	t, err := r.readTable()
	if err != nil {
		return err
	}
	return errors.Join(append(r.setRoutes(t, nil), r.sweep())...)
}

func (r *native) name() string { return ModeNative }

func (r *native) MTU(uplink int) int { return uplink }

// hostGW has a route for each pod CIDR of the other nodes, via their addresses.
type hostGW struct{ base }

func (r *hostGW) sync(self Node, others []Node, _ *Wanted) error {
	t, err := r.readTable()
	if err != nil {
		return err
	}
	nodes, errs := checkFacts(&r.cfg, self, others)
	var want []wantedRoute
	for _, n := range nodes {
		cidrs, bad := r.usable(t, n)
		errs = append(errs, bad...)
		for _, p := range cidrs {
			route, err := t.via(n, p)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			want = append(want, route)
		}
	}
	errs = append(errs, r.setRoutes(t, want)...)
	return errors.Join(append(errs, r.sweep())...) // devices of another mode carry traffic until the routes are here
}

func (r *hostGW) name() string { return ModeHostGW }

func (r *hostGW) MTU(uplink int) int { return uplink }

// via finds the node's address on a segment of this node.
func (t *table) via(n Node, p netip.Prefix) (wantedRoute, error) {
	var tried []string
	for _, a := range n.InternalIPs {
		if a.Is4() != p.Addr().Is4() {
			continue
		}
		if s, ok := t.segment(a); ok {
			return wantedRoute{n.Name, routeTo(p, a, s.LinkIndex)}, nil
		}
		tried = append(tried, a.String())
	}
	if len(tried) == 0 {
		return wantedRoute{}, &NodeError{n.Name, fmt.Sprintf("podCIDR %s: the node has no InternalIP of %s that can be used", p, familyName(p.Addr().Is4()))}
	}
	return wantedRoute{}, &NodeError{n.Name, fmt.Sprintf("podCIDR %s: InternalIP %s is on no segment of this node; use routing: vxlan or wireguard, or native with a router",
		p, strings.Join(tried, ", "))}
}
