// SPDX-License-Identifier: Apache-2.0

// Package sbr is the chained plugin for source based routing: what a pod sends
// from an interface's address leaves by that interface, whatever other
// interfaces the pod has.
//
// It owns the rules it adds in the pod's network namespace, the routing tables
// they point to, and the section "sbr" of the attachment record, by which DEL
// puts the main table back.
package sbr

import (
	"context"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "sbr"

// Deps are the plugin's ways to the world.
type Deps struct{ Records *attachments.Dir }

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.All(),
		Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: status,
	}
}

// section is what an attachment record holds of this plugin: what it is about to
// add and to take out of the main table. Its JSON is read by later versions.
type section struct {
	NetNS uint64       `json:"netnsInode,omitempty"` // a path may name another namespace later
	Rules []rule       `json:"rules,omitempty"`
	Moved []rtnl.Route `json:"moved,omitempty"` // routes of the main table, as they were
	Own   bool         `json:"own,omitempty"`   // the tables are this attachment's, not the configuration's
	Hints []rtnl.Route `json:"hints,omitempty"` // routes put in the place of moved ones
}

// rule is one rule: packets from Src look into Table.
type rule struct {
	Src   netip.Addr `json:"src"`
	Table int        `json:"table"`
}

func (r rule) nl() rtnl.Rule {
	return rtnl.Rule{Src: netip.PrefixFrom(r.Src, r.Src.BitLen()), Table: r.Table}
}

func (p *plugin) recall(ref attachments.ID) (s section, found bool, path string) {
	return attachments.ReadSection[section](p.Records, ref, Name)
}

// add sets the pod's tables and rules up and passes the result on.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	r, err := parse(a)
	if err != nil {
		return nil, err
	}
	if r.prev, err = r.Chained(); err != nil {
		return nil, err
	}
	if r.addrs, err = r.addresses(); err != nil {
		return nil, err
	}
	out, err := cniconf.Convert(r.prev, r.Version())
	if err != nil {
		return nil, err
	}
	if len(r.addrs) == 0 {
		return out, nil // all addresses are another interface's
	}
	pod, err := podns.Open(a.Netns)
	if err != nil {
		return nil, err
	}
	defer pod.Close() // which also ends the lock
	if err := pod.Lock(ctx, p.Records); err != nil {
		return nil, err
	}
	if err := p.route(ctx, r, pod); err != nil {
		return nil, err
	}
	return out, nil
}

// status says whether an ADD would work now.
func status(_ context.Context, a *cniskel.Args) error {
	if _, err := parse(a); err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
	}
	h, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "open netlink")
	}
	defer h.Close()
	_, err = h.Rules(rtnl.FamilyV4)
	return cnierr.Wrap(cnierr.CodeUnavailable, err, "this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES)")
}

func ref(r *request) attachments.ID { return r.args.Ref(r.Name) }
