// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// del takes the rules out and puts the main table back. A namespace that is gone
// has taken all of it along.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	var c conf
	if err := cniconf.Load(a.StdinData, &c); err != nil && c.Name == "" {
		return err // with a name, an odd value elsewhere must not keep us from cleaning
	}
	return p.detach(ctx, a.Log, a.Ref(c.Name), a.Netns, c.Table)
}

func (p *plugin) detach(ctx context.Context, l *log.Logger, ref attachments.ID, path string, table *int) error {
	old, found, recorded := p.recall(ref)
	pod, err := podns.Reopen(old.NetNS, path, recorded)
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod != nil {
		if err := pod.LockForDel(ctx, l, p.Records); err != nil {
			return err
		}
		if found {
			err = old.remove(pod)
			// The pod may have changed its interface; an error would keep the plugins before this one from cleaning up.
			if berr := old.putBack(pod); berr != nil {
				l.Warn("routes of the main table are not back", log.Error(berr))
			}
		} else if !p.Records.Claimed(ref, path) {
			err = removeByAddress(pod, ref.IfName, table)
		}
		if err != nil {
			return err
		}
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the attachment record")
}

// removeByAddress removes the rules for the interface's addresses, of one table
// where the configuration has it: those of an attachment without a record, upstream's
// plugin's for one.
func removeByAddress(pod *podns.Pod, ifname string, table *int) error {
	link, err := pod.LinkByName(ifname)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "find interface %s in the pod", ifname)
	}
	addrs, err := pod.AddrsOf(link.Index, rtnl.FamilyAll)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "list the addresses of %s", ifname)
	}
	rules, err := pod.Rules(rtnl.FamilyAll)
	errs := []error{err}
	for _, r := range rules {
		if r.Src.IsValid() && r.Src.IsSingleIP() && (table == nil || r.Table == *table) &&
			slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == r.Src.Addr() }) {
			errs = append(errs, gone(pod.DelRule(r)))
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(errs...), "remove the rules of %s", ifname)
}

// gc removes the rules of attachments that the runtime no longer lists.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return gc.Collector{
		Section: Name, List: p.Records.List,
		Detach: func(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
			return p.detach(ctx, call.Log, rec.ID, "", nil)
		},
	}.GC(ctx, a)
}

// check looks for the rule of each address and for what its table must have.
func (p *plugin) check(_ context.Context, a *cniskel.Args) error {
	r, err := parse(a)
	if err != nil {
		return err
	}
	if r.prev, err = r.Chained(); err != nil {
		return err
	}
	if r.addrs, err = r.addresses(); err != nil {
		return err
	}
	pod, err := podns.Open(a.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	rules, err := pod.Rules(rtnl.FamilyAll)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list the pod's rules")
	}
	old, _, _ := p.recall(ref(r))
	var diffs []error
	for _, addr := range r.addrs {
		diffs = append(diffs, r.checkAddress(pod, addr, rules, old))
	}
	return errors.Join(diffs...)
}

func (r *request) checkAddress(pod *podns.Pod, a address, rules []rtnl.Rule, old section) error {
	i := slices.IndexFunc(rules, func(rule rtnl.Rule) bool {
		return rule.Src.IsValid() && rule.Src.IsSingleIP() && rule.Src.Addr() == a.prefix.Addr() && r.rightTable(rule, old)
	})
	if i < 0 {
		return differs("there is no rule that routes by the source %s", a.prefix.Addr())
	}
	if r.Table != nil {
		return nil
	}
	routes, err := pod.RoutesWhere(rtnl.RouteFilter{Family: rules[i].Family, Table: rules[i].Table})
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list table %d", rules[i].Table)
	}
	for _, want := range r.routes(a, rules[i].Table, 0, old.Moved) {
		if want.Dst.Bits() == 0 && !slices.ContainsFunc(routes, func(h rtnl.Route) bool { return h.Dst.Bits() == 0 && h.Gateway == want.Gateway }) {
			return differs("table %d of %s has no default route%s", rules[i].Table, a.prefix.Addr(), by(want.Gateway))
		}
	}
	return nil
}

func by(gateway netip.Addr) string {
	if !gateway.IsValid() {
		return ""
	}
	return " by " + gateway.String()
}

// rightTable reports that a rule points where ADD pointed it, as far as anybody
// knows.
func (r *request) rightTable(have rtnl.Rule, old section) bool {
	if r.Table != nil {
		return have.Table == *r.Table
	}
	i := slices.IndexFunc(old.Rules, func(o rule) bool { return o.Src == have.Src.Addr() })
	return i < 0 || old.Rules[i].Table == have.Table
}

func differs(format string, a ...any) error {
	return cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), "")
}
