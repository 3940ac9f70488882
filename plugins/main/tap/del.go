// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

func (p *plugin) record(ref attachments.ID) cniops.Record {
	return cniops.Record{Dir: p.Records, ID: ref, Section: Name}
}

// del removes the device and releases the addresses. It needs no more than the
// attachment's name.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := cniops.ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	return p.detach(ctx, a, c, a.Ref(c.Name))
}

// detach goes on after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniskel.Args, c cniops.DelConf, ref attachments.ID) error {
	old, found, path := attachments.ReadSection[section](p.Records, ref, Name)
	paths := []string{a.Netns, path}
	if !found && p.Records.Claimed(ref, a.Netns) {
		paths = nil // the interface is another attachment's
	}
	return p.record(ref).Detach(ctx, p.IPAM, a, c.IPAM, old.IPAM, func() error { return removeIn(paths, old.NetNS, ref.IfName) })
}

// removeIn deletes the tap of that name in the namespace that it was made in, as
// far as anybody knows. One that is gone has taken the device along.
func removeIn(paths []string, inode uint64, name string) error {
	if name == "" { // of a record that cannot be read
		return nil
	}
	pod, err := cniops.Reopen(inode, paths...)
	if pod == nil {
		return err
	}
	defer pod.Close()
	return removeTap(pod, name)
}

// removeTap deletes the device if it is a tap; another kind of that name is
// not ours.
func removeTap(pod *rtnl.Handle, name string) error {
	l, err := pod.LinkByName(name)
	if err == nil && l.Tun != nil && l.Tun.Tap {
		err = pod.DelLink(l.Index)
	}
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "delete %s", name)
}

// gc removes what this network's records name and the runtime no longer lists.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return cniops.Collector{
		Section: Name, List: p.Records.List, IPAM: p.IPAM,
		Detach: func(ctx context.Context, call *cniskel.Args, c cniops.DelConf, rec *attachments.Record) error {
			return p.detach(ctx, call, c, rec.ID)
		},
	}.GC(ctx, a)
}

// status says whether an ADD would work now.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	r, err := parse(a)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
	}
	var errs []error
	if err := rtnl.TunAvailable(); err != nil {
		errs = append(errs, noTun(err, cnierr.CodeUnavailable))
	}
	if r.ipamType != "" {
		errs = append(errs, p.IPAM.Status(ctx, a, r.ipamType))
	}
	return errors.Join(errs...)
}
