// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// settleTimeout bounds the wait for IPv6 addresses to be usable again.
const settleTimeout = 5 * time.Second

// former is what an interface has before it joins or leaves a VRF, which the
// kernel takes from it: it sets the device down and up.
type former struct {
	Addrs  []rtnl.Addr  `json:"addrs,omitempty"`  // IPv6, global
	Routes []rtnl.Route `json:"routes,omitempty"` // made by other programs, of all tables
}

// note reads what the change will take.
func note(pod *podns.Pod, link rtnl.Link) (former, error) {
	var f former
	addrs, err := pod.AddrsOf(link.Index, rtnl.FamilyV6)
	if err != nil {
		return f, err
	}
	for _, a := range addrs {
		if a.Scope != rtnl.ScopeLink {
			f.Addrs = append(f.Addrs, a)
		}
	}
	routes, err := pod.RoutesWhere(rtnl.RouteFilter{LinkIndex: link.Index})
	for _, r := range routes {
		if r.Table != rtnl.TableLocal && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA && r.Type == unix.RTN_UNICAST {
			f.Routes = append(f.Routes, r)
		}
	}
	return f, err
}

// move makes the link a port of master (0: of none) and gives back what that
// takes. Routes of the table from go to the table to.
func (f former) move(ctx context.Context, pod *podns.Pod, link rtnl.Link, master, from, to int) error {
	w, err := rtnl.SubscribeIn(pod.NS, rtnl.GroupAddrV6, rtnl.GroupLink)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := pod.SetMaster(link.Index, master); err != nil {
		return err
	}
	for _, a := range f.Addrs {
		// No other host has taken it in a moment: it need not be checked again.
		a.Flags = a.Flags&unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD
		if err := pod.AddAddr(a); err != nil && !errors.Is(err, rtnl.ErrExist) {
			return err
		}
	}
	if err := f.settle(ctx, pod, link, w); err != nil {
		return err
	}
	routes := slices.Clone(f.Routes)
	for i := range routes {
		if routes[i].Table == from {
			routes[i].Table = to
		}
	}
	// Not in place of others: another interface in the VRF may have a route to the same destination.
	for hops := range rtnl.Hops(routes) {
		if err := pod.AddHops(hops); err != nil && !errors.Is(err, rtnl.ErrExist) {
			return err
		}
	}
	return nil
}

// settle waits until the addresses can be used; a route that names one as its
// source is refused before.
func (f former) settle(ctx context.Context, pod *podns.Pod, link rtnl.Link, w *rtnl.Watch) error {
	if len(f.Addrs) == 0 || !link.Up {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := w.Wait(ctx, link.Index, func() (bool, error) {
		have, err := pod.AddrsOf(link.Index, rtnl.FamilyV6)
		if err != nil {
			return false, err
		}
		for _, a := range f.Addrs {
			if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == a.Prefix && !h.Tentative() }) {
				return false, nil
			}
		}
		return true, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		if l, lerr := pod.LinkByIndex(link.Index); lerr == nil && l.OperState != rtnl.OperUp {
			return nil // without a carrier the check cannot end
		}
	}
	if err != nil {
		return fmt.Errorf("wait for the IPv6 addresses of %s: %w", link.Name, err)
	}
	return nil
}

// join is ADD in the pod. On an error everything is as it was.
func (p *plugin) join(ctx context.Context, r *request, pod *podns.Pod) (err error) {
	link, err := pod.LinkByName(r.args.IfName)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "find interface %s in the pod", r.args.IfName)
	}
	if link.MasterIndex != 0 {
		return taken(pod, link)
	}
	dev, found, err := r.find(pod)
	if err != nil {
		return err
	}
	s := section{NetNS: pod.NS.Inode(), VRF: r.VRFName, Table: dev.VRFTable}
	if !found {
		if s.Table, err = r.chooseTable(pod); err != nil {
			return err
		}
	}
	if s.former, err = note(pod, link); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look at %s", link.Name)
	}
	ref := r.args.Ref(r.Name)
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if err := p.Records.Begin(ref, r.args.Netns, Name, s); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	rb.Push("attachment record", func(context.Context) error { return p.Records.Remove(ref, Name) })
	if !found {
		if dev, err = makeVRF(pod, s, &rb); err != nil {
			return err
		}
	}
	rb.Push(link.Name+" in "+dev.Name, func(ctx context.Context) error {
		return s.move(ctx, pod, link, 0, int(dev.VRFTable), rtnl.TableMain)
	})
	if err := s.move(ctx, pod, link, dev.Index, rtnl.TableMain, int(dev.VRFTable)); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "put %s into %s", link.Name, dev.Name)
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Complete(ref, Name, s), "complete the attachment record")
}

func taken(pod *podns.Pod, link rtnl.Link) error {
	name := fmt.Sprintf("link index %d", link.MasterIndex)
	if m, err := pod.LinkByIndex(link.MasterIndex); err == nil {
		name = m.Name
	}
	return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("interface %s has already a master set: %s", link.Name, name), "")
}

// find returns the VRF if it is there, and refuses what has its name or another
// table.
func (r *request) find(pod *podns.Pod) (rtnl.Link, bool, error) {
	dev, err := pod.LinkByName(r.VRFName)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
		return dev, false, nil
	case err != nil:
		return dev, false, cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", r.VRFName)
	case dev.Kind != Name:
		return dev, false, cnierr.Config("vrfname", r.VRFName, "the pod's device of that name is no VRF")
	case r.Table != 0 && dev.VRFTable != r.Table:
		return dev, false, cnierr.Config("table", r.Table, fmt.Sprintf("the VRF %s already exists with the routing table %d", dev.Name, dev.VRFTable))
	}
	return dev, true, nil
}

// chooseTable returns the configured table, or the lowest that no VRF, no rule
// and no route of the pod uses.
func (r *request) chooseTable(pod *podns.Pod) (uint32, error) {
	if r.Table != 0 {
		return r.Table, nil // another VRF may have it too, as in upstream; the kernel decides (net.vrf.strict_mode)
	}
	links, err1 := pod.Links()
	rules, err2 := pod.Rules(rtnl.FamilyAll)
	routes, err3 := pod.AllRoutes(rtnl.FamilyAll)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, cnierr.Wrap(cnierr.CodeKernel, err, "look for a free table")
	}
	used := map[uint32]bool{}
	for _, x := range rules {
		used[uint32(x.Table)] = true
	}
	for _, x := range routes {
		used[uint32(x.Table)] = true
	}
	for _, l := range links {
		used[l.VRFTable] = true
	}
	table := uint32(1)
	for used[table] {
		table++
	}
	return table, nil
}

func makeVRF(pod *podns.Pod, s section, rb *rollback.Stack) (rtnl.Link, error) {
	err := pod.AddVRF(s.VRF, s.Table)
	if errors.Is(err, rtnl.ErrNotSupported) {
		return rtnl.Link{}, cnierr.Wrap(cnierr.CodeUnsupported, err, "vrfname %q: this kernel has no VRFs (CONFIG_NET_VRF)", s.VRF)
	}
	if err != nil {
		return rtnl.Link{}, cnierr.Wrap(cnierr.CodeKernel, err, "make the VRF")
	}
	rb.Push("VRF "+s.VRF, func(context.Context) error { return removeIfEmpty(pod, s.VRF) })
	dev, err := pod.LinkByName(s.VRF)
	return dev, cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", s.VRF)
}

// lacks compares the interface's IPv6 addresses, which ADD put back, and prevResult's
// routes, with what is there. IPv4 addresses stay when an interface joins: they are for the plugin that gave them.
func lacks(pod *podns.Pod, link rtnl.Link, table int, r *request) ([]error, error) {
	addrs, err := pod.AddrsOf(link.Index, rtnl.FamilyAll)
	if err != nil {
		return nil, err
	}
	var diffs []error
	own := cniconf.PodAddrs(r.prev, link.Name)
	for _, p := range own {
		if p.Addr().Is6() && !slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix == p }) {
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("%s does not have the address %s", link.Name, p), ""))
		}
	}
	if len(own) == 0 {
		return diffs, nil // the routes are not known to be this interface's
	}
	routes, err := pod.RoutesWhere(rtnl.RouteFilter{LinkIndex: link.Index})
	for _, want := range r.prev.Routes {
		if want.Table != nil && *want.Table != rtnl.TableMain {
			continue
		}
		addr, _ := netip.AddrFromSlice(want.Dst.IP)
		ones, _ := want.Dst.Mask.Size()
		dst := netip.PrefixFrom(addr.Unmap(), ones).Masked()
		// What sbr took to a table of its own before ADD stays there; the main table is what the VRF's stands for.
		if !slices.ContainsFunc(routes, func(h rtnl.Route) bool { return h.Table != rtnl.TableMain && h.Dst == dst }) {
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf("table %d has no route to %s by %s", table, dst, link.Name), ""))
		}
	}
	return diffs, err
}
