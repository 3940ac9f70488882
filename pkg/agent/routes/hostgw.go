// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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

func (r *hostGW) sync(self Node, others []Node, w *Wanted) error {
	writeDirect(w.SelfAnnotations, self)
	t, err := r.readTable()
	if err != nil {
		return err
	}
	nodes, errs := checkFacts(&r.cfg, self, others)
	var want []wantedRoute
	for _, n := range nodes {
		routes, bad := r.planDirect(t, n, func(netip.Prefix) bool { return true })
		want, errs = append(want, routes...), append(errs, bad...)
	}
	if self.Annotations[AnnotationMode] == "" && self.Annotations[flannelType] == ModeHostGW { // the first time after flannel
		t.adoptEqual(want)
	}
	errs = append(errs, r.setRoutes(t, want)...)
	// Devices of another mode carry traffic until the routes are here. Nodes in mode vxlan send to them until they know better.
	var keep []string
	if slices.ContainsFunc(others, func(n Node) bool { return n.Annotations[flannelType] == ModeVXLAN }) {
		keep = []string{r.cfg.VXLAN.Device, deviceV6(r.cfg.VXLAN.Device)}
	}
	errs = append(errs, r.sweep(keep...))
	r.swept = r.swept && keep == nil
	return errors.Join(errs...)
}

// planDirect finds the routes to a node's pods by its own addresses.
func (b *base) planDirect(t *table, n Node, wanted func(netip.Prefix) bool) (want []wantedRoute, errs []error) {
	cidrs, errs := b.usable(t, n)
	for _, p := range cidrs {
		if !wanted(p) {
			continue
		}
		route, err := t.via(n, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		want = append(want, route)
	}
	return want, errs
}

// adoptEqual takes routes for Sluice's own that are as wanted: those that flannel has left.
func (t *table) adoptEqual(want []wantedRoute) {
	for _, w := range want {
		k := routeKey{w.Dst, w.Priority}
		f, there := t.foreign[k]
		own := f
		own.Protocol = Protocol
		if _, ours := t.ours[k]; there && !ours && f.Protocol == unix.RTPROT_BOOT && sameRoute(own, w.Route) {
			t.ours[k] = f
			delete(t.foreign, k)
		}
	}
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
