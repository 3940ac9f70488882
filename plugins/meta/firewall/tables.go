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
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/firewalld"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// tables is the backend that writes netfilter rules.
type tables struct {
	netfilter.Tables
	Deps
}

var _ Backend = tables{}

// Prepare finds the bridge to isolate. The tables have been found usable when
// they were chosen.
func (b tables) Prepare(_ context.Context, _ *cniskel.Args, r request) (Job, error) {
	f, err := b.firewall(r)
	return &tablesJob{b, f}, err
}

// firewall is the request in the words of pkg/netfilter.
func (b tables) firewall(r request) (netfilter.Firewall, error) {
	f := netfilter.Firewall{Ref: r.ref, Addrs: r.addrs, AdminChain: r.conf.IptablesAdminChainName, Policy: r.conf.IngressPolicy}
	if f.Policy == "" || f.Policy == netfilter.PolicyOpen {
		return f, nil
	}
	f.Bridge = bridgeOf(r)
	if !netfilter.ValidDeviceName(f.Bridge) {
		return f, cnierr.Config("ingressPolicy", f.Policy, "prevResult names no bridge: chain the firewall after a plugin that makes one")
	}
	return f, nil
}

// bridgeOf returns the first device of the previous result that is on the host
// and a bridge; without one that can be looked at, the first one on the host.
func bridgeOf(r request) string {
	first := ""
	h, err := rtnl.New()
	if err == nil {
		defer h.Close()
	}
	for _, i := range r.prev.Interfaces {
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

// Record adds the bridge that DEL may have to release.
func (j *tablesJob) Record(s *section) { s.Bridge = j.f.Bridge }

// Apply writes the rules.
func (j *tablesJob) Apply(ctx context.Context, rb *rollback.Stack) error {
	rb.Push("firewall rules", func(ctx context.Context) error {
		s := section{Bridge: j.f.Bridge}
		for _, a := range j.f.Addrs {
			s.Addrs = append(s.Addrs, a.Addr())
		}
		return j.withdraw(ctx, j.f.Ref, &s)
	})
	return netfilter.CNIError(j.AddFirewall(ctx, j.f), cnierr.CodeNoDatapath, "admit the pod")
}

// Remove takes the rules out. Without a record, the addresses are those that the
// previous result says: upstream's rules have nothing else to go by.
func (b tables) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, s *section) error {
	known := s != nil
	if !known {
		s = &section{Addrs: prevAddrs(a)}
	}
	err := b.withdraw(ctx, ref, s)
	if !known {
		err = backend.Unusable(a, b, err)
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
func (b tables) withdraw(ctx context.Context, ref attachments.ID, s *section) error {
	others, err := b.others(ref)
	if err != nil {
		return err
	}
	w := netfilter.Withdrawal{Ref: ref, Bridge: s.Bridge, AlsoHeldBy: make(map[netip.Addr]attachments.ID)}
	for _, a := range s.Addrs {
		i := slices.IndexFunc(others, func(o section) bool { return o.Backend == b.Name() && slices.Contains(o.Addrs, a) })
		if i < 0 {
			w.Addrs = append(w.Addrs, a)
		} else {
			w.AlsoHeldBy[a] = others[i].ref
		}
	}
	w.Used = func() bool { return b.isolated(ctx, ref, s) }
	return b.DelFirewall(ctx, w)
}

// isolated reports whether another pod relies on the isolation of the bridge:
// an attachment whose record names it and these tables, or a pod of upstream's plugins, which
// may be on it. Unsure is yes.
func (b tables) isolated(ctx context.Context, ref attachments.ID, s *section) bool {
	others, err := b.others(ref)
	if err != nil {
		return true
	}
	if slices.ContainsFunc(others, func(o section) bool {
		return o.Bridge == s.Bridge && (o.Backend == b.Name() || o.IsolatedBy == b.Name())
	}) {
		return true
	}
	strangers, err := b.AdmitsOthers(ctx, func(a netip.Addr) bool {
		return slices.Contains(s.Addrs, a) || slices.ContainsFunc(others, func(o section) bool { return slices.Contains(o.Addrs, a) })
	})
	return strangers || err != nil
}

// others returns what the records of the other attachments say.
func (b tables) others(but attachments.ID) ([]section, error) {
	records, err := b.Records.List("")
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
	}
	var out []section
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); ok && err == nil && r.ID != but {
			s.ref = r.ID
			out = append(out, s)
		}
	}
	return out, nil
}

// Check compares the rules, the shared ones too.
func (b tables) Check(ctx context.Context, a *cniskel.Args, r request) error {
	f, err := b.firewall(r)
	if err != nil {
		return err
	}
	return netfilter.CNIError(b.CheckFirewall(ctx, f), cnierr.CodeNoDatapath, "the admission of %s differs from the configuration", a.IfName)
}

// Sweep does nothing: the rules of what has a record went with it, and the
// reference's say nothing about whose they are. The runtime's own DELs, with
// their previous results, take those.
func (tables) Sweep(context.Context, *cniskel.Args, string, map[attachments.ID]bool) error {
	return nil
}

// Status has nothing to add: tables that were chosen can be used.
func (tables) Status(context.Context, *cniskel.Args) error { return nil }

// zones is the backend that asks firewalld. ingressPolicy still needs netfilter
// tables, as in upstream. So does an admin chain that is named, which upstream ignores
// with firewalld.
type zones struct {
	firewalld.Client
	Deps
}

var _ Backend = zones{}

// Prepare chooses the tables for the isolation and the admin chain, if there is any.
func (b zones) Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error) {
	j := &zonesJob{zones: b, r: r}
	for _, p := range r.addrs {
		j.addrs = append(j.addrs, p.Addr())
	}
	if !r.conf.isolates() && r.conf.IptablesAdminChainName == "" {
		return j, nil
	}
	node, err := b.Netfilter(a)
	if err != nil {
		return nil, err
	}
	t, _, err := node.Select(ctx, r.conf.tables(backend.Auto))
	if err != nil {
		return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "ingressPolicy and iptablesAdminChainName need netfilter tables")
	}
	j.isolation, err = tables{t, b.Deps}.Prepare(ctx, a, r)
	j.by = t.Name()
	return j, err
}

type zonesJob struct {
	zones
	r         request
	addrs     []netip.Addr
	isolation Job // nil: none
	by        string
}

func (*zonesJob) Close() error { return nil }

// Record adds the zone and who isolates.
func (j *zonesJob) Record(s *section) {
	s.Zone = j.r.conf.FirewalldZone
	if j.isolation != nil {
		j.isolation.Record(s)
		s.IsolatedBy = j.by
	}
}

// Apply puts the addresses into the zone.
func (j *zonesJob) Apply(ctx context.Context, rb *rollback.Stack) error {
	rb.Push("firewalld sources", func(ctx context.Context) error { return j.Del(ctx, j.r.conf.FirewalldZone, j.addrs) })
	if err := j.Add(ctx, j.r.conf.FirewalldZone, j.addrs); err != nil {
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "admit the pod by firewalld")
	}
	if j.isolation == nil {
		return nil
	}
	return j.isolation.Apply(ctx, rb)
}

// Remove takes the addresses out of the zone. Without a record they are those of
// the previous result, in the zone of the configuration.
func (b zones) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, s *section) error {
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

// isolators are the tables that isolate for an attachment, none if it is not isolated.
func (b zones) isolators(a *cniskel.Args, s *section) []tables {
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
func (b zones) Check(ctx context.Context, a *cniskel.Args, r request) error {
	var addrs []netip.Addr
	for _, p := range r.addrs {
		addrs = append(addrs, p.Addr())
	}
	errs := []error{netfilter.CNIError(b.Client.Check(ctx, r.conf.FirewalldZone, addrs), cnierr.CodeNoDatapath, "the admission of %s differs from the configuration", a.IfName)}
	if s, found, _ := attachments.ReadSection[section](b.Records, r.ref, Name); found {
		for _, t := range b.isolators(a, &s) {
			errs = append(errs, t.Check(ctx, a, r))
		}
	}
	return errors.Join(errs...)
}

// Sweep does nothing: a source says nothing about whose it is.
func (zones) Sweep(context.Context, *cniskel.Args, string, map[attachments.ID]bool) error {
	return nil
}

// Status has nothing to add: firewalld that was chosen runs.
func (zones) Status(context.Context, *cniskel.Args) error { return nil }
