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
		pl.tables = append(pl.tables, a.routes(table, link.Index, own)...)
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

// routes returns what belongs into the table of an address: the interface's
// routes of its family that are for its subnet or for no source in particular,
// and a default route, which takes the place of one that is there.
func (a address) routes(table, link int, all []rtnl.Route) []rtnl.Route {
	v4 := a.prefix.Addr().Is4()
	subnet := a.prefix.Masked()
	var out []rtnl.Route
	for _, r := range all {
		if r.Dst.Addr().Is4() != v4 || !generic(r) && !subnet.Contains(r.Src) && !subnet.Contains(r.Gateway) && (!r.Gateway.IsValid() || r.Gateway != a.gateway) {
			continue
		}
		if a.gateway.IsValid() && r.Dst.Bits() == 0 {
			continue // ours takes its place
		}
		r.Table = table
		out = append(out, r)
	}
	if a.gateway.IsValid() {
		out = append(out, rtnl.Route{LinkIndex: link, Dst: netip.PrefixFrom(unspecified(v4), 0), Gateway: a.gateway, Table: table})
	}
	// A gateway must be reachable before a route can use it.
	slices.SortStableFunc(out, func(x, y rtnl.Route) int { return rank(x) - rank(y) })
	return out
}

// unserved returns the routes of a family in which the interface has no address, for
// the table of its first one. No rule of that family leads there: a default route
// of such an interface carries nothing, and in the main table it would take the
// packets of other interfaces. Upstream moves them to that table too.
func unserved(addrs []address, table int, moved []rtnl.Route) (out []rtnl.Route) {
	for _, r := range moved {
		if !hasFamily(addrs, r.Dst.Addr().Is4()) {
			r.Table = table
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(x, y rtnl.Route) int { return rank(x) - rank(y) })
	return out
}

func hasFamily(addrs []address, v4 bool) bool {
	return slices.ContainsFunc(addrs, func(a address) bool { return a.prefix.Addr().Is4() == v4 })
}

// generic reports a route that neither source nor gateway ties to an address.
func generic(r rtnl.Route) bool { return !r.Src.IsValid() && !r.Gateway.IsValid() }

func rank(r rtnl.Route) int {
	if r.Gateway.IsValid() {
		return 1
	}
	return 0
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
		unserved := r.Dst.Bits() == 0 && !hasFamily(addrs, r.Dst.Addr().Is4())
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
	// Those by a gateway first: they rest on the others.
	moved := slices.Clone(pl.Moved)
	slices.SortStableFunc(moved, func(x, y rtnl.Route) int { return rank(y) - rank(x) })
	for _, r := range moved {
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
	back := slices.Clone(s.Moved)
	slices.SortStableFunc(back, func(x, y rtnl.Route) int { return rank(x) - rank(y) })
	for hops := range rtnl.Hops(back) {
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
