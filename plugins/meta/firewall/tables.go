// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// tables is the back end that writes netfilter rules.
type tables struct {
	netfilter.Tables
	Deps
}

var _ Backend = tables{}

// Prepare finds the bridge to isolate. The tables have been found usable when
// they were chosen.
func (b tables) Prepare(_ context.Context, _ *cniskel.Args, w want) (Job, error) {
	f, err := b.firewall(w)
	return &tablesJob{b, f}, err
}

// firewall is the request in the words of pkg/netfilter.
func (b tables) firewall(w want) (netfilter.Firewall, error) {
	f := netfilter.Firewall{Ref: w.ref, Addrs: w.addrs, AdminChain: w.conf.IptablesAdminChainName, Policy: w.conf.IngressPolicy}
	if f.Policy == "" || f.Policy == netfilter.PolicyOpen {
		return f, nil
	}
	f.Bridge = bridgeOf(w)
	if !nameOK(f.Bridge, maxIfName) {
		return f, cnierr.Config("ingressPolicy", f.Policy, "prevResult names no bridge: chain the firewall after a plugin that makes one")
	}
	return f, nil
}

// bridgeOf returns the first device of the previous result that is on the host
// and a bridge; without one that can be looked at, the first one on the host.
func bridgeOf(w want) string {
	first := ""
	h, err := rtnl.New()
	if err == nil {
		defer h.Close()
	}
	for _, i := range w.prev.Interfaces {
		if i == nil || i.Sandbox != "" || i.Name == "" {
			continue
		}
		if first == "" {
			first = i.Name
		}
		if err == nil {
			if l, err := h.LinkByName(i.Name); err == nil && l.Kind == "bridge" {
				return i.Name
			}
		}
	}
	return first
}

type tablesJob struct {
	tables
	f netfilter.Firewall
}

func (*tablesJob) Close() error { return nil }

// Describe adds the bridge that DEL may have to release.
func (j *tablesJob) Describe(s *section) { s.Bridge = j.f.Bridge }

// Do writes the rules.
func (j *tablesJob) Do(ctx context.Context, undos *rollback.Stack) error {
	undos.Push("firewall rules", func(ctx context.Context) error {
		s := section{Bridge: j.f.Bridge}
		for _, a := range j.f.Addrs {
			s.Addrs = append(s.Addrs, a.Addr())
		}
		return j.withdraw(ctx, j.f.Ref, &s)
	})
	return netfilter.CNIError(j.AddFirewall(ctx, j.f), cnierr.CodeNoDatapath, "admit the pod")
}

// Remove takes the rules out. Without a record, the addresses are those that the
// previous result says: the reference's rules have nothing else to go by.
func (b tables) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, s *section) error {
	known := s != nil
	if !known {
		s = &section{Addrs: prevAddrs(a)}
	}
	err := b.withdraw(ctx, ref, s)
	if !known && errors.Is(err, netfilter.ErrUnusable) {
		a.Log.Warn("tables that may hold something cannot be looked at", log.String("backend", b.Name()), log.Error(err))
		return nil
	}
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "withdraw the admission of %s", ref.IfName)
}

// prevAddrs reads the addresses of the previous result, if the call has one that
// can be read.
func prevAddrs(a *cniskel.Args) []netip.Addr {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return nil
	}
	prev, err := conf.Chained()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, p := range cniconf.PodAddrs(prev, a.IfName) {
		out = append(out, p.Addr())
	}
	return out
}

// withdraw removes the rules of addresses that no other attachment has by now,
// and a bridge's when no other attachment isolates it.
func (b tables) withdraw(ctx context.Context, ref attachments.Ref, s *section) error {
	others, err := b.others(ref)
	if err != nil {
		return err
	}
	w := netfilter.Withdrawal{Ref: ref, Bridge: s.Bridge, Heirs: make(map[netip.Addr]attachments.Ref)}
	for _, a := range s.Addrs {
		i := slices.IndexFunc(others, func(o section) bool { return o.Backend == b.Name() && slices.Contains(o.Addrs, a) })
		if i < 0 {
			w.Addrs = append(w.Addrs, a)
		} else {
			w.Heirs[a] = others[i].ref
		}
	}
	w.Used = func() bool { return b.isolated(ctx, ref, s) }
	return b.DelFirewall(ctx, w)
}

// isolated reports whether somebody else relies on the isolation of the bridge:
// an attachment whose record names it and these tables, or a pod of the reference plugins, which
// may be on it. Unsure is yes.
func (b tables) isolated(ctx context.Context, ref attachments.Ref, s *section) bool {
	others, err := b.others(ref)
	if err != nil {
		return true
	}
	if slices.ContainsFunc(others, func(o section) bool {
		return o.Bridge == s.Bridge && (o.Backend == b.Name() || o.IsolatedBy == b.Name())
	}) {
		return true
	}
	strangers, err := b.Strangers(ctx, func(a netip.Addr) bool {
		return slices.Contains(s.Addrs, a) || slices.ContainsFunc(others, func(o section) bool { return slices.Contains(o.Addrs, a) })
	})
	return strangers || err != nil
}

// others returns what the records of the other attachments say.
func (b tables) others(but attachments.Ref) ([]section, error) {
	records, err := b.Records.List("")
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
	}
	var out []section
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); ok && err == nil && r.Ref != but {
			s.ref = r.Ref
			out = append(out, s)
		}
	}
	return out, nil
}

// Check compares the rules, the shared ones too.
func (b tables) Check(ctx context.Context, a *cniskel.Args, w want) error {
	f, err := b.firewall(w)
	if err != nil {
		return err
	}
	return netfilter.CNIError(b.CheckFirewall(ctx, f), cnierr.CodeNoDatapath, "the admission of %s differs from the configuration", a.IfName)
}

// Sweep does nothing: the rules of what has a record went with it, and the
// reference's say nothing about whose they are. The runtime's own DELs, with
// their previous results, take those.
func (tables) Sweep(context.Context, *cniskel.Args, string, map[attachments.Ref]bool) error {
	return nil
}

// Status has nothing to add: tables that were chosen can be used.
func (tables) Status(context.Context, *cniskel.Args) error { return nil }

// firewalld is the back end that asks firewalld. ingressPolicy is netfilter's
// all the same, as in the reference.
type firewalld struct {
	*netfilter.Firewalld
	Deps
}

var _ Backend = firewalld{}

// Prepare chooses the tables for the isolation, if there is any.
func (b firewalld) Prepare(ctx context.Context, a *cniskel.Args, w want) (Job, error) {
	j := &firewalldJob{firewalld: b, w: w}
	for _, p := range w.addrs {
		j.addrs = append(j.addrs, p.Addr())
	}
	if !w.conf.isolates() {
		return j, nil
	}
	node, err := b.Netfilter(a)
	if err != nil {
		return nil, err
	}
	t, _, err := node.Select(ctx, backendAuto)
	if err != nil {
		return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "ingressPolicy needs netfilter tables")
	}
	j.isolation, err = tables{t, b.Deps}.Prepare(ctx, a, w)
	j.by = t.Name()
	return j, err
}

type firewalldJob struct {
	firewalld
	w         want
	addrs     []netip.Addr
	isolation Job // nil: none
	by        string
}

func (*firewalldJob) Close() error { return nil }

// Describe adds the zone and who isolates.
func (j *firewalldJob) Describe(s *section) {
	s.Zone = j.w.conf.FirewalldZone
	if j.isolation != nil {
		j.isolation.Describe(s)
		s.IsolatedBy = j.by
	}
}

// Do puts the addresses into the zone.
func (j *firewalldJob) Do(ctx context.Context, undos *rollback.Stack) error {
	undos.Push("firewalld sources", func(ctx context.Context) error { return j.Del(ctx, j.w.conf.FirewalldZone, j.addrs) })
	if err := j.Add(ctx, j.w.conf.FirewalldZone, j.addrs); err != nil {
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "admit the pod by firewalld")
	}
	if j.isolation == nil {
		return nil
	}
	return j.isolation.Do(ctx, undos)
}

// Remove takes the addresses out of the zone. Without a record they are those of
// the previous result, in the zone of the configuration.
func (b firewalld) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, s *section) error {
	if s == nil {
		s = &section{Addrs: prevAddrs(a), Zone: zoneOf(a)}
	}
	if len(s.Addrs) == 0 {
		return nil
	}
	others, err := (tables{Deps: b.Deps}).others(ref)
	if err != nil {
		return err
	}
	mine := slices.DeleteFunc(slices.Clone(s.Addrs), func(addr netip.Addr) bool {
		return slices.ContainsFunc(others, func(o section) bool { return o.Backend == netfilter.NameFirewalld && slices.Contains(o.Addrs, addr) })
	})
	errs := []error{netfilter.CNIError(b.Del(ctx, s.Zone, mine), cnierr.CodeNoDatapath, "withdraw the admission of %s by firewalld", ref.IfName)}
	for _, t := range b.isolators(a, s) {
		errs = append(errs, t.Remove(ctx, a, ref, s))
	}
	return errors.Join(errs...)
}

// isolators are the tables that isolate for an attachment, none if nobody does.
func (b firewalld) isolators(a *cniskel.Args, s *section) []tables {
	if s.IsolatedBy == "" {
		return nil
	}
	var out []tables
	node, _ := b.Netfilter(a) // it can be used with an error too
	for _, t := range node.All() {
		if t.Name() == s.IsolatedBy {
			out = append(out, tables{t, b.Deps})
		}
	}
	return out
}

func zoneOf(a *cniskel.Args) string {
	var conf Conf
	_ = cniconf.Load(a.StdinData, &conf) // what cannot be read is the default
	return conf.FirewalldZone
}

// Check asks firewalld for every address, and looks for the isolation: a reload
// of firewalld may flush the tables.
func (b firewalld) Check(ctx context.Context, a *cniskel.Args, w want) error {
	var addrs []netip.Addr
	for _, p := range w.addrs {
		addrs = append(addrs, p.Addr())
	}
	errs := []error{netfilter.CNIError(b.Firewalld.Check(ctx, w.conf.FirewalldZone, addrs), cnierr.CodeNoDatapath, "the admission of %s differs from the configuration", a.IfName)}
	if s, found, _ := attachments.Recall[section](b.Records, w.ref, Name); found {
		for _, t := range b.isolators(a, &s) {
			errs = append(errs, t.Check(ctx, a, w))
		}
	}
	return errors.Join(errs...)
}

// Sweep does nothing: a source says nothing about whose it is.
func (firewalld) Sweep(context.Context, *cniskel.Args, string, map[attachments.Ref]bool) error {
	return nil
}

// Status has nothing to add: firewalld that was chosen runs.
func (firewalld) Status(context.Context, *cniskel.Args) error { return nil }
