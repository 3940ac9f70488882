// SPDX-License-Identifier: Apache-2.0

package sublink

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
)

// attach is one ADD under way.
type attach struct {
	*Request
	*cniops.Namespaces
	p  *plugin
	rb rollback.Stack

	master rtnl.Link
	link   rtnl.Link
	rec    section
	result *types100.Result
}

// add makes the pod's interface. Everything that can be wrong with the call is
// found before the first effect; a failure after it takes back what was made.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	req, err := p.parse(a, false)
	if err != nil {
		return nil, err
	}
	t := &attach{Request: req, p: p}
	if t.Namespaces, err = cniops.Open(a.Netns); err != nil {
		return nil, err
	}
	defer t.Namespaces.Close()
	if err := t.prepare(); err != nil {
		return nil, err
	}
	defer t.rb.Rollback(ctx, &err)
	if err := cniops.RunSteps(ctx, t.begin, t.makeLink, t.allocate, t.configure, t.complete); err != nil {
		return nil, err
	}
	return cniconf.Convert(t.result, t.Version())
}

// prepare refuses what the kernel's state rules out. It changes nothing.
func (t *attach) prepare() (err error) {
	if err := t.EnsureIfNameFree(t.Args.IfName); err != nil {
		return err
	}
	if !t.HasMaster {
		return nil
	}
	if t.master, err = t.findMaster(t.parentHandle()); err != nil {
		return err
	}
	return t.checkMTU(t.master)
}

// parentHandle is in the namespace of the master.
func (t *attach) parentHandle() *rtnl.Handle {
	if t.Master.LinkInContainer {
		return t.Pod
	}
	return t.Host
}

// begin writes the intent. Whatever an earlier ADD of this attachment left is
// removed first, since its record is about to be replaced.
func (t *attach) begin(context.Context) error {
	if old := t.p.loadSection(t.ref); old.found {
		if err := old.remove(t.p.Name, t.ref.IfName); err != nil {
			return err
		}
	}
	t.rec = section{NetNS: t.NS.Inode(), Master: t.master.Name, IPAM: t.IPAM}
	return t.p.record(t.ref).Begin(&t.rb, t.Args.Netns, t.rec)
}

// makeLink makes the interface where it belongs, under its name.
func (t *attach) makeLink(context.Context) error {
	s := t.Spec
	s.Name, s.Parent = t.Args.IfName, t.master.Index
	h := t.Pod
	if t.HasMaster && !t.Master.LinkInContainer {
		h, s.NS = t.Host, t.NS.Fd()
	}
	if err := h.AddSub(s); err != nil {
		return t.explain(h, err)
	}
	t.rb.Push(t.p.Name+" "+s.Name, func(context.Context) error {
		l, err := t.Pod.LinkByName(s.Name)
		if err != nil {
			return gone(err)
		}
		return gone(t.Pod.DelLink(l.Index))
	})
	var err error
	if t.link, err = t.Pod.LinkByName(s.Name); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", s.Name)
	}
	if s.BCQueueLen != 0 && t.link.Sub.BCQueueLen == 0 {
		t.Args.Log.Warn("this kernel has no bcqueuelen (Linux 5.11)")
	}
	return nil
}

// explain says what the kernel's refusal means.
func (t *attach) explain(h *rtnl.Handle, err error) error {
	what := "make the " + t.p.Name
	if t.HasMaster {
		what += " on " + t.master.Name
	}
	switch {
	case errors.Is(err, rtnl.ErrNotSupported) && h.Supports(t.p.Name) != nil:
		return cnierr.Unsupported("type", t.p.Name, "this kernel has no such devices")
	case errors.Is(err, rtnl.ErrExist):
		if taken := t.EnsureIfNameFree(t.Args.IfName); taken != nil { // another process was faster
			return taken
		}
		if t.p.Name == "vlan" {
			return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("vlanId %d: %s has an interface for this VLAN already", t.Spec.VLANID, t.master.Name), "")
		}
	case errors.Is(err, rtnl.ErrNotFound) && t.HasMaster:
		return cnierr.Config("master", t.master.Name, "the interface went away"+t.where())
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINVAL):
		if t.p.Busy != "" {
			what += ": " + t.p.Busy
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "%s", what)
}

// allocate finds the addresses: IPAM's, or those that were given.
func (t *attach) allocate(ctx context.Context) error {
	t.result = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	from := t.Given
	var err error
	switch {
	case t.ipamType != "":
		from, t.rec.Addrs, err = ipam.Allocate(ctx, t.p.IPAM, t.Args, t.ipamType, &t.rb)
	case from != nil:
		t.rec.Addrs, err = ipam.Addrs(from)
	default:
		from = &types100.Result{}
	}
	if err != nil {
		return err
	}
	t.result.IPs, t.result.Routes, t.result.DNS = from.IPs, from.Routes, cniops.DNS(t.DNS, from.DNS)
	for _, ip := range t.result.IPs {
		ip.Interface = types100.Int(0)
	}
	return nil
}

// configure gives the interface its addresses and routes and sets it up.
func (t *attach) configure(ctx context.Context) error {
	i := podiface.Interface{NS: t.NS, Pod: t.Pod, Link: t.link, Log: t.Args.Log, DAD: t.EnableDAD, Announce: t.Announce}
	err := i.ConfigureResult(ctx, t.rec.Addrs, t.result)
	if errors.Is(err, unix.ENETDOWN) && t.HasMaster && !t.master.Up {
		return cnierr.Wrap(cnierr.CodeConfig, err, "invalid master %q: the interface is down", t.master.Name)
	}
	return err
}

// complete marks the record as done and finishes the result.
func (t *attach) complete(context.Context) error {
	t.rec.Index = t.link.Index
	if err := t.p.record(t.ref).Complete(t.rec); err != nil {
		return err
	}
	t.result.Interfaces = []*types100.Interface{cniops.ResultInterface(t.link, t.Args.Netns, t.Version())}
	return nil
}

// gone takes "there is no such thing" for success.
func gone(err error) error {
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return err
}
