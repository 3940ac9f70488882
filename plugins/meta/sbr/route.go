// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// plan is what an ADD is about to do, decided before the first change.
type plan struct {
	section
	tables []rtnl.Route // routes of the tables that the rules point to
}

// route makes the pod route by source. On an error everything is as it was.
func (p *plugin) route(ctx context.Context, r *request, pod *podns.Pod) (err error) {
	link, err := pod.LinkByName(r.args.IfName)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "find interface %s in the pod", r.args.IfName)
	}
	ref := ref(r)
	if old, found, _ := p.recall(ref); found && old.NetNS == pod.NS.Inode() {
		if err := old.undo(pod); err != nil { // a repeated ADD starts anew
			return err
		}
	}
	pl, err := makePlan(r, pod, link)
	if err != nil {
		return err
	}
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if err := p.Records.Begin(ref, r.args.Netns, Name, pl.section); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	rb.Push("attachment record", func(context.Context) error { return p.Records.Remove(ref, Name) })
	rb.Push("rules and routes", func(context.Context) error { return pl.undo(pod) })
	if err := pl.apply(pod); err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Complete(ref, Name, pl.section), "complete the attachment record")
}

// makePlan looks at the interface's routes and the tables in use.
func makePlan(r *request, pod *podns.Pod, link rtnl.Link) (*plan, error) {
	pl := &plan{section: section{NetNS: pod.NS.Inode(), Own: r.Table == nil}}
	if r.Table != nil {
		for _, a := range r.addrs {
			pl.Rules = append(pl.Rules, rule{a.prefix.Addr(), *r.Table})
		}
		return pl, nil
	}
	all, err := pod.AllRoutes(rtnl.FamilyAll)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "list the pod's routes")
	}
	used, err := tablesInUse(pod, all)
	if err != nil {
		return nil, err
	}
	var own []rtnl.Route
	for _, route := range all {
		if route.Table == rtnl.TableMain && route.LinkIndex == link.Index && !keepInMain(route) && !shared(route, all) {
			own = append(own, route)
		}
	}
	table := firstTable
	for _, a := range r.addrs {
		for used[table] {
			table++
		}
		used[table] = true
		pl.Rules = append(pl.Rules, rule{a.prefix.Addr(), table})
		pl.tables = append(pl.tables, r.routes(a, table, link.Index, own)...)
	}
	pl.Moved = own
	if r.AddSourceHints {
		pl.hint(r.addrs, link.Index)
	}
	pl.tables = append(pl.tables, unserved(r.addrs, pl.Rules[0].Table, pl.Moved)...)
	return pl, nil
}

// tablesInUse returns the tables that some rule or route of the pod refers to.
func tablesInUse(pod *podns.Pod, routes []rtnl.Route) (map[int]bool, error) {
	rules, err := pod.Rules(rtnl.FamilyAll)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "list the pod's rules")
	}
	used := map[int]bool{defTable: true, rtnl.TableMain: true, localTable: true}
	for _, r := range rules {
		used[r.Table] = true
	}
	for _, r := range routes {
		used[r.Table] = true
	}
	return used, nil
}

// keepInMain reports a route that must stay: link-local addresses belong to
// their interface already, and no rule is made for them.
func keepInMain(r rtnl.Route) bool {
	return r.Dst.Addr().IsLinkLocalUnicast() && r.Dst.Addr().Is6() || r.Dst.Addr().IsMulticast() || r.Type != unix.RTN_UNICAST
}

// routes returns what belongs into the table of an address, of the interface's routes that may leave the main table:
// those of its family that are for it or for no address in particular, what their gateways need, and a default route.
func (r *request) routes(a address, table, link int, all []rtnl.Route) []rtnl.Route {
	all = slices.DeleteFunc(slices.Clone(all), func(route rtnl.Route) bool { return !a.sameFamily(route.Dst.Addr()) })
	var out []rtnl.Route
	for _, route := range all {
		if (a.owns(route) || !r.owned(route)) && !a.displaces(route) {
			out = append(out, route)
		}
	}
	for _, route := range all { // on the link, but owned by another address
		if !route.Gateway.IsValid() && !slices.Contains(out, route) && slices.ContainsFunc(out, func(by rtnl.Route) bool { return route.Dst.Contains(by.Gateway) }) {
			out = append(out, route)
		}
	}
	if a.gateway.IsValid() && !slices.ContainsFunc(out, a.isDefault) {
		out = append(out, rtnl.Route{LinkIndex: link, Dst: netip.PrefixFrom(unspecified(a.prefix.Addr().Is4()), 0), Gateway: a.gateway})
	}
	for i := range out {
		out[i].Table = table
	}
	return out
}

// owns reports a route that its source or its gateway ties to the address. A gateway is often outside of every
// subnet: link-local, marked onlink, or behind a host route.
func (a address) owns(r rtnl.Route) bool {
	return a.prefix.Contains(r.Src) || a.prefix.Contains(r.Gateway) || r.Gateway.IsValid() && r.Gateway == a.gateway
}

// owned reports a route that is tied to some address by a subnet. What is not goes to every table: it served every
// address from the main one.
func (r *request) owned(route rtnl.Route) bool {
	return slices.ContainsFunc(r.addrs, func(a address) bool {
		return a.sameFamily(route.Dst.Addr()) && (a.prefix.Contains(route.Src) || a.prefix.Contains(route.Gateway))
	})
}

// displaces reports a default route that a gateway of the configuration takes the place of.
func (a address) displaces(r rtnl.Route) bool {
	return a.configured && r.Dst.Bits() == 0 && r.Gateway != a.gateway
}

// isDefault reports a default route that makes one by the address's gateway needless: it is by that gateway, perhaps
// with an MTU or onlink, or it has the metric that ours would have. The interface plugin chose it, so it stays.
func (a address) isDefault(r rtnl.Route) bool {
	metric := 0
	if r.Dst.Addr().Is6() {
		metric = defaultMetric6
	}
	return r.Dst.Bits() == 0 && (r.Gateway == a.gateway || r.Priority == metric)
}

func (a address) sameFamily(other netip.Addr) bool { return a.prefix.Addr().Is4() == other.Is4() }

// unserved returns the routes of a family in which the interface has no address, for
// the table of its first one. No rule of that family leads there: a default route
// of such an interface carries nothing, and in the main table it would take the
// packets of other interfaces. Upstream moves them to that table too.
func unserved(addrs []address, table int, moved []rtnl.Route) (out []rtnl.Route) {
	for _, r := range moved {
		if !hasFamily(addrs, r.Dst.Addr()) {
			r.Table = table
			out = append(out, r)
		}
	}
	return out
}

func hasFamily(addrs []address, of netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a address) bool { return a.sameFamily(of) })
}

func unspecified(v4 bool) netip.Addr {
	if v4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// hint leaves the routes that need no gateway in the main table, and lets those
// to the addresses' subnets name the address as source, so that a program that
// has not chosen one gets the right one. A default route of a family without an
// address does not stay.
func (pl *plan) hint(addrs []address, link int) {
	for _, a := range addrs {
		h := rtnl.Route{LinkIndex: link, Dst: a.prefix.Masked(), Src: a.prefix.Addr(), Table: rtnl.TableMain}
		if a.prefix.Addr().Is4() {
			h.Scope = rtnl.ScopeLink
		}
		pl.Hints = append(pl.Hints, h)
	}
	pl.Moved = slices.DeleteFunc(slices.Clone(pl.Moved), func(r rtnl.Route) bool {
		unserved := r.Dst.Bits() == 0 && !hasFamily(addrs, r.Dst.Addr())
		return !r.Gateway.IsValid() && !unserved && !slices.ContainsFunc(pl.Hints, func(h rtnl.Route) bool { return h.Dst == r.Dst })
	})
}

// shared reports that r is a next hop of a multipath route, one of the list, that
// cannot be moved with its interface: another one has a part in it, or a hop has
// no gateway.
func shared(r rtnl.Route, list []rtnl.Route) bool {
	return r.Multipath && slices.ContainsFunc(list, func(o rtnl.Route) bool {
		return r.SharesHops(o) && (o.LinkIndex != r.LinkIndex || !o.Gateway.IsValid())
	})
}

// apply makes the tables, then the rules, and empties the main table last: at no
// moment has a packet no route.
func (pl *plan) apply(pod *podns.Pod) error {
	for hops := range rtnl.Hops(pl.tables) {
		if err := pod.AddHops(hops); err != nil && !errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "fill table %d", hops[0].Table)
		}
	}
	for _, r := range pl.Rules {
		if err := pod.AddRule(r.nl()); err != nil && !errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "add a rule")
		}
	}
	if !pl.Own {
		return nil
	}
	for _, r := range pl.Moved {
		if err := pod.DelRoute(r); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "move a route out of the main table")
		}
	}
	for _, r := range pl.Hints {
		if err := pod.AddRoute(r); err != nil && !errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "add a source hint")
		}
	}
	return nil
}

// undo takes out what a plan has put in, and puts the main table back. It tries
// everything.
func (s section) undo(pod *podns.Pod) error { return errors.Join(s.remove(pod), s.putBack(pod)) }

// remove takes out what a plan has put in, as far as it is there.
func (s section) remove(pod *podns.Pod) error {
	var errs []error
	for _, r := range s.Rules {
		errs = append(errs, gone(pod.DelRule(r.nl())))
		if s.Own {
			errs = append(errs, flush(pod, r))
		}
	}
	for _, r := range s.Hints {
		errs = append(errs, gone(pod.DelRoute(r)))
	}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(errs...), "take out the rules and tables")
}

// putBack fills the main table again.
func (s section) putBack(pod *podns.Pod) error {
	var errs []error
	for hops := range rtnl.Hops(s.Moved) {
		err := pod.AddHops(hops)
		if !errors.Is(err, rtnl.ErrExist) && !homeless(pod, hops[0]) {
			errs = append(errs, err)
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(errs...), "put the pod's routes back")
}

// homeless reports that a route's interface has gone or is down, and its routes
// with it.
func homeless(pod *podns.Pod, r rtnl.Route) bool {
	l, err := pod.LinkByIndex(r.LinkIndex)
	return err != nil || !l.Up
}

// flush empties the table of a rule, in both families: it was chosen free.
func flush(pod *podns.Pod, r rule) error {
	routes, err := pod.RoutesWhere(rtnl.RouteFilter{Family: rtnl.FamilyAll, Table: r.Table})
	errs := []error{err}
	for _, route := range routes {
		errs = append(errs, gone(pod.DelRoute(route)))
	}
	return errors.Join(errs...)
}

// gone takes "there is no such thing" for success.
func gone(err error) error {
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return err
}
