// SPDX-License-Identifier: Apache-2.0

package sublink

import (
	"context"
	"encoding/json"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

func (p *plugin) record(ref attachments.ID) cniops.Record {
	return cniops.Record{Dir: p.Records, ID: ref, Section: p.Name}
}

// del detaches the pod. It reads no more of the configuration than the
// network's name and ipam: a master that is gone, or keys that ADD would
// refuse, are no obstacle.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := cniops.ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	ref := a.Ref(c.Name)
	old := p.loadSection(ref)
	if a.Netns != "" {
		old.netns = a.Netns
	}
	if (!old.found || old.Index == 0) && p.Records.Claimed(ref, old.netns) {
		old.netns = ""
	}
	return p.detach(ctx, a, ref, old, c.IPAM)
}

// gc detaches what the runtime no longer lists. A recorded path may name another
// pod's namespace by now: the recorded inode and index tell, and what another
// attachment claims is spared.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return cniops.Collector{
		Section: p.Name, List: p.Records.List, IPAM: p.IPAM,
		Detach: func(ctx context.Context, call *cniskel.Args, c cniops.DelConf, rec *attachments.Record) error {
			old := p.loadSection(rec.ID)
			// Of an ADD that was killed no index is recorded: name and kind find what it made, in the namespace with the recorded
			// inode alone. It must not stay, since its addresses are released.
			if !old.found || old.NetNS == 0 || p.Records.Claimed(rec.ID, old.netns) {
				old.netns = "" // nothing tells the interface from another's
			}
			return p.detach(ctx, call, rec.ID, old, c.IPAM)
		},
	}.GC(ctx, a)
}

// detach removes the interface, releases the address and then forgets the
// attachment. It goes on after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniskel.Args, ref attachments.ID, old remembered, section json.RawMessage) error {
	return p.record(ref).Detach(ctx, p.IPAM, a, section, old.IPAM, func() error { return old.remove(p.Name, ref.IfName) })
}

// remove deletes the recorded interface, by its index, or what has its name and
// kind when no index is recorded: an ADD of Sluice that was killed, or one of
// upstream. A namespace that is gone took the interface with it, as did
// one that has been replaced by another under the same path.
func (r remembered) remove(kind, ifname string) error {
	pod, err := cniops.Reopen(r.NetNS, r.netns)
	if pod == nil {
		return err
	}
	defer pod.Close()
	var l rtnl.Link
	if r.Index != 0 {
		l, err = pod.LinkByIndex(r.Index)
	} else {
		l, err = pod.LinkByName(ifname)
	}
	if err != nil || l.Kind != kind {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up %s in the pod", ifname)
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(pod.DelLink(l.Index)), "delete %s", l.Name)
}
