// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// del takes the interface out of the VRF and the VRF away with its last one. A
// namespace that is gone has taken both along.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	var c conf
	if err := cniconf.Load(a.StdinData, &c); err != nil && c.Name == "" {
		return err // with a name, an odd value elsewhere must not keep us from cleaning
	}
	return p.detach(ctx, a.Log, a.Ref(c.Name), a.Netns, c.VRFName)
}

func (p *plugin) detach(ctx context.Context, l *log.Logger, ref attachments.ID, path, vrf string) error {
	old, found, recorded := p.recall(ref)
	if found {
		vrf = old.VRF
	}
	pod, err := podns.Reopen(old.NetNS, path, recorded)
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod != nil && vrf != "" && (found || !p.Records.Claimed(ref, path)) { // without a record, the interface may be another attachment's
		if err := pod.LockForDel(ctx, l, p.Records); err != nil {
			return err
		}
		if err := leave(ctx, l, pod, ref.IfName, vrf); err != nil {
			return err
		}
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the attachment record")
}

// leave takes the interface out of the VRF, if it is in it, and gives it back
// what that takes, as far as it works: the next plugin removes the interface.
func leave(ctx context.Context, l *log.Logger, pod *podns.Pod, ifname, vrf string) error {
	dev, err := pod.LinkByName(vrf)
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && dev.Kind != Name {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", vrf)
	}
	link, err := pod.LinkByName(ifname)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", ifname)
	}
	if err == nil && link.MasterIndex == dev.Index {
		f, err := note(pod, link)
		if err == nil {
			err = f.move(ctx, pod, link, 0, int(dev.VRFTable), rtnl.TableMain)
		}
		if err != nil {
			l.Warn("addresses or routes of the interface are not back", log.Error(err))
			if l, lerr := pod.LinkByIndex(link.Index); lerr == nil && l.MasterIndex == dev.Index {
				return cnierr.Wrap(cnierr.CodeKernel, err, "take %s out of %s", ifname, vrf)
			}
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, removeIfEmpty(pod, vrf), "delete %s", vrf)
}

// removeIfEmpty deletes the VRF when no interface is left in it.
func removeIfEmpty(pod *podns.Pod, vrf string) error {
	dev, err := pod.LinkByName(vrf)
	if err == nil {
		var ports []rtnl.Link
		if ports, err = pod.LinksOf(dev.Index); err == nil && len(ports) == 0 {
			err = pod.DelLink(dev.Index)
		}
	}
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return err
}

// gc takes out the interfaces of attachments that the runtime no longer lists.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return gc.Collector{
		Section: Name, List: p.Records.List,
		Detach: func(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
			return p.detach(ctx, call.Log, rec.ID, "", "")
		},
	}.GC(ctx, a)
}
