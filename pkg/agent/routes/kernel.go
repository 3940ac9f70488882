// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// aliasPrefix begins the alias (IFLA_IFALIAS) of each device of this package. It says after a restart, or a change of mode or
// name, which devices are Sluice's. The mode follows.
const aliasPrefix = "sluice-agent "

// metric6 is the kernel's own for IPv6 routes without one. With it written down, wanted routes and dumped ones compare.
const metric6 = 1024

// base is what the routers of all modes share.
type base struct {
	cfg     Config
	log     *log.Logger
	h       *rtnl.Handle
	swept   bool // devices of other modes and names have been looked for
	onlyV4  bool // this node has no pod CIDR of IPv6
	changes int  // what has been written to the kernel, for tests
	devices int  // devices that have come or gone
}

func (b *base) shared() *base { return b }

// open makes the sockets in the network namespace of the calling thread.
func (b *base) open() (err error) {
	if b.h == nil {
		b.h, err = rtnl.New()
	}
	return err
}

// wantedRoute is a route with the node whose pods are behind it.
type wantedRoute struct {
	node string
	rtnl.Route
}

// routeTo is a route to a pod CIDR of another node.
func routeTo(dst netip.Prefix, gateway netip.Addr, link int) rtnl.Route {
	r := rtnl.Route{Dst: dst, Gateway: gateway, LinkIndex: link, Table: rtnl.TableMain, Protocol: Protocol, Type: unix.RTN_UNICAST}
	if dst.Addr().Is6() {
		r.Priority = metric6
	}
	return r
}

// routeKey is what makes two routes of the main table one to the kernel, if the TOS is none.
type routeKey struct {
	dst      netip.Prefix
	priority int
}

// table is the main table as it was dumped.
type table struct {
	ours      map[routeKey]rtnl.Route
	extra     []rtnl.Route // ours, under a key that another one has
	foreign   map[routeKey]rtnl.Route
	connected []rtnl.Route // without a gateway, the longest first
	own       []netip.Addr // of the node: those on lo have no connected route
}

func (b *base) readTable() (*table, error) {
	routes, err := b.h.Routes(rtnl.FamilyAll)
	if err != nil {
		return nil, err
	}
	t := &table{ours: map[routeKey]rtnl.Route{}, foreign: map[routeKey]rtnl.Route{}}
	if t.own, err = OwnAddrs(b.h); err != nil {
		return nil, err
	}
	for _, r := range routes {
		k := routeKey{r.Dst, r.Priority}
		if r.Protocol == Protocol {
			if _, ok := t.ours[k]; ok {
				t.extra = append(t.extra, r)
			} else {
				t.ours[k] = r
			}
			continue
		}
		t.foreign[k] = r
		if !r.Gateway.IsValid() && r.LinkIndex > 0 && r.Type == unix.RTN_UNICAST && !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() && r.Dst.Bits() > 0 {
			t.connected = append(t.connected, r)
		}
	}
	slices.SortStableFunc(t.connected, func(a, b rtnl.Route) int { return b.Dst.Bits() - a.Dst.Bits() })
	return t, nil
}

// leave forgets the routes of a family, so that they stay as they are: what they need could not be found out.
func (t *table) leave(v4 bool) {
	for k := range t.ours {
		if k.dst.Addr().Is4() == v4 {
			delete(t.ours, k)
		}
	}
	t.extra = slices.DeleteFunc(t.extra, func(r rtnl.Route) bool { return r.Dst.Addr().Is4() == v4 })
}

// segment returns the connected route that an address is reached by without a gateway.
func (t *table) segment(a netip.Addr) (rtnl.Route, bool) {
	i := slices.IndexFunc(t.connected, func(r rtnl.Route) bool { return r.Dst.Contains(a) })
	if i < 0 {
		return rtnl.Route{}, false
	}
	return t.connected[i], true
}

// nearSubnet says which subnet of this node a pod CIDR of another one overlaps. One that clusterCIDRs names is meant so, if it
// is only a part. Routes to a single host do not count: they win over any pod CIDR, and with IPAM for the whole cluster a pod of
// this node may have an address out of another node's.
func (b *base) nearSubnet(t *table, p netip.Prefix) (string, bool) {
	for _, r := range t.connected {
		if !r.Dst.IsSingleIP() && r.Dst.Overlaps(p) && (r.Dst.Bits() >= p.Bits() || !limits(&b.cfg, p)) {
			return r.Dst.String(), true
		}
	}
	return "", false
}

// usable returns the pod CIDRs of a node that have no part of this node's own subnets.
func (b *base) usable(t *table, n Node) (cidrs []netip.Prefix, errs []error) {
	for _, p := range n.PodCIDRs {
		if s, ok := b.nearSubnet(t, p); ok {
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("podCIDR %s: overlaps %s, a subnet of this node; give the node another podCIDR, or name the pods' networks in clusterCIDRs", p, s)})
			continue
		}
		if i := slices.IndexFunc(t.own, p.Contains); i >= 0 {
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("podCIDR %s: holds %s, an address of this node; give the node another podCIDR, or take the address away", p, t.own[i])})
			continue
		}
		cidrs = append(cidrs, p)
	}
	return cidrs, errs
}

// setRoutes makes the routes of this package what is wanted. Each is replaced in one step if the kernel can.
func (b *base) setRoutes(t *table, want []wantedRoute) (errs []error) {
	keep := make(map[routeKey]bool, len(want))
	for _, w := range want {
		k := routeKey{w.Dst, w.Priority}
		if keep[k] {
			continue
		}
		have, ours := t.ours[k]
		if ours && sameRoute(have, w.Route) {
			keep[k] = true
			continue
		}
		if f, ok := t.foreign[k]; ok { // with one of ours beside it, the kernel would not say which one it replaces
			errs = append(errs, &NodeError{w.node, fmt.Sprintf("podCIDR %s: the route %s of protocol %d is there, which is not Sluice's; delete it", w.Dst, f, f.Protocol)})
			continue
		}
		set := b.h.AddOnlyRoute
		if ours {
			set = b.replace
		}
		if err := set(w.Route); err != nil {
			errs = append(errs, &NodeError{w.node, err.Error()})
			keep[k] = ours // better an old route than none
			continue
		}
		keep[k] = true
		b.changes++
	}
	for k, r := range t.ours {
		if !keep[k] {
			errs = append(errs, b.dropRoute(r))
		}
	}
	for _, r := range t.extra {
		errs = append(errs, b.dropRoute(r))
	}
	return errs
}

// replace changes a route in one step. IPv6 checks the gateway of an onlink route against the very route that it would replace
// (ip6_route_check_nh_onlink). So a change of mode to vxlan leads the gateway's own address to the device first.
func (b *base) replace(want rtnl.Route) error {
	err := b.h.ReplaceRoute(want)
	if !errors.Is(err, unix.EINVAL) || !want.Onlink || !want.Dst.Addr().Is6() {
		return err
	}
	gateway := routeTo(netip.PrefixFrom(want.Gateway, want.Gateway.BitLen()), netip.Addr{}, want.LinkIndex)
	if err := b.h.AddOnlyRoute(gateway); err != nil {
		return err
	}
	return errors.Join(b.h.ReplaceRoute(want), b.dropRoute(gateway))
}

func (b *base) dropRoute(r rtnl.Route) error {
	if err := b.h.DelRoute(r); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return err
	}
	b.changes++
	return nil
}

func sameRoute(a, b rtnl.Route) bool {
	return a.Protocol == b.Protocol && a.Gateway == b.Gateway && a.LinkIndex == b.LinkIndex && a.Src == b.Src && a.Type == b.Type && a.MTU == b.MTU && a.Onlink == b.Onlink && !a.Multipath
}

// sweep removes devices of this package, and keys, but those that the mode uses. All links are listed once in the life of a process.
func (b *base) sweep(keep ...string) error {
	if b.swept {
		return nil
	}
	links, err := b.h.Links()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if !isOurs(l) || slices.Contains(keep, l.Name) {
			continue
		}
		if err := b.h.DelLink(l.Index); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		b.changes++
		b.devices++
		b.log.Info("removed a device of another mode", log.String(log.KeyDevice, l.Name))
	}
	if !slices.Contains(keep, b.cfg.WireGuard.Device) {
		errs = append(errs, removeKeys(b.cfg.StateDir))
	}
	b.swept = errors.Join(errs...) == nil
	return errors.Join(errs...)
}

func isOurs(l rtnl.Link) bool { return strings.HasPrefix(l.Alias, aliasPrefix) }

// families notes which families pods of this node have.
func (b *base) families(self Node) {
	b.onlyV4 = len(self.PodCIDRs) > 0 && !firstCIDR(self, false).IsValid()
}

// annotations returns what a node must say of itself in a mode, without what the mode itself adds. What another mode has set is
// taken back. With flannel's keys, the node's own annotations tell whether an agent of Sluice has set them.
func annotations(mode string, self Node) map[string]string {
	all := map[string]string{AnnotationMode: mode}
	blank := func(keys ...string) {
		for _, key := range keys {
			if _, ok := self.Annotations[key]; ok {
				all[key] = ""
			}
		}
	}
	if mode != ModeWireGuard {
		blank(AnnotationWireGuard)
	}
	if !speaksFlannel(mode) && speaksFlannel(self.Annotations[AnnotationMode]) {
		blank(flannelKeys()...)
	}
	return all
}

// SetBySluice returns those annotations of a node that an agent of Sluice has set, with empty values: for a node that it leaves.
func SetBySluice(has map[string]string) map[string]string {
	set := map[string]string{}
	keys := []string{AnnotationMode, AnnotationWireGuard}
	if speaksFlannel(has[AnnotationMode]) {
		keys = append(keys, flannelKeys()...)
	}
	for _, key := range keys {
		if _, ok := has[key]; ok {
			set[key] = ""
		}
	}
	return set
}

// Remove removes routes, devices and keys of every mode.
func (b *base) Remove(context.Context) error {
	if err := b.open(); err != nil {
		return err
	}
	t, err := b.readTable()
	if err != nil {
		return err
	}
	b.swept = false
	return errors.Join(append(b.setRoutes(t, nil), b.sweep())...)
}
