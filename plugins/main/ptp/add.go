// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// podInterface is the index of the pod's end in the result's interfaces.
const podInterface = 1

// attach is one ADD under way.
type attach struct {
	*request
	*cniops.Namespaces
	p    *plugin
	rb   rollback.Stack
	masq *masquerade.Session // nil without masquerading

	hostEnd, podEnd rtnl.Link
	rec             section
	result          *types100.Result
	plan            plan
}

// add attaches the pod. Everything that can be wrong with the call is found
// before the first effect; a failure after it takes back what was made.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	req, err := parse(a)
	if err != nil {
		return nil, err
	}
	t := &attach{request: req, p: p}
	defer t.close()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	defer t.rb.Rollback(ctx, &err)
	if err := cniops.RunSteps(ctx,
		t.begin, t.makeVeth, t.allocate, t.checkFree, t.configureHost, t.configurePod, t.masqueradePod, t.waitUp, t.serveClient, t.complete,
	); err != nil {
		return nil, err
	}
	return cniconf.Convert(t.result, t.Version())
}

// prepare opens what the steps need and refuses what the kernel's state rules
// out. It changes nothing.
func (t *attach) prepare(ctx context.Context) (err error) {
	if t.Namespaces, err = cniops.Open(t.args.Netns); err != nil {
		return err
	}
	if err := t.EnsureIfNameFree(t.args.IfName); err != nil {
		return err
	}
	if t.IPMasq {
		t.masq, err = t.p.masq().Begin(ctx, t.args, t.Conf)
	}
	return err
}

func (t *attach) close() {
	t.masq.Close()
	t.Namespaces.Close()
}

// begin writes the intent. Whatever an earlier ADD of this attachment left is
// removed first, since its record is about to be replaced.
func (t *attach) begin(ctx context.Context) error {
	if old := t.p.loadSection(t.ref); old.found {
		if err := t.p.removeDevices(ctx, t.Host, t.args, t.ref, old); err != nil {
			return err
		}
	}
	t.rec = section{
		Recorded:   veth.Recorded{HostIfName: veth.HostName(t.ref, 0), HostMAC: veth.RandomMAC().String()},
		Masquerade: t.masq.Backend(),
		IPAM:       t.IPAM,
	}
	return t.p.record(t.ref).Begin(&t.rb, t.args.Netns, t.rec)
}

// makeVeth makes the pair, in place, with one message. The host veth is up. The
// pod's end begins inside its namespace.
func (t *attach) makeVeth(context.Context) error {
	save := func() error { return t.p.record(t.ref).Write(t.args.Netns, t.rec) }
	err := t.rec.Make(t.ref, func() error {
		return t.rec.AddPair(t.Host, t.PairConf, t.args.Log, rtnl.VethSpec{
			HostName: t.rec.HostIfName, HostMAC: t.rec.MAC(), HostUp: true,
			PeerName: t.args.IfName, PeerNS: t.NS.Fd(), MTU: t.MTU,
		})
	}, save, func() error { return t.EnsureIfNameFree(t.args.IfName) })
	if err != nil {
		return err
	}
	t.rb.Push("veth "+t.rec.HostIfName, func(context.Context) error { return t.rec.Remove(t.Host) })
	if t.hostEnd, t.podEnd, err = t.rec.Ends(t.Host, t.Pod, t.args.IfName); err != nil {
		return err
	}
	veth.NoRA(t.args.Log, t.hostEnd)
	return t.SetBigTCP(t.Host, t.Pod, t.args.Log, t.hostEnd, t.podEnd)
}

// allocate asks the IPAM plugin and plans what follows from its answer.
func (t *attach) allocate(ctx context.Context) (err error) {
	res, addrs, err := ipam.Allocate(ctx, t.p.IPAM, t.args, t.ipamType, &t.rb)
	if err != nil {
		return err
	}
	t.rec.Addrs = addrs
	t.result = &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs:        res.IPs, Routes: res.Routes, DNS: cniops.DNS(t.DNS, res.DNS),
	}
	for i, ip := range t.result.IPs {
		ip.Interface = types100.Int(podInterface)
		ip.Gateway = gatewayOf(ip, addrs[i])
	}
	t.plan, err = planFor(t.result, addrs, t.hostEnd.Index, t.podEnd.Index)
	return err
}

// checkFree refuses an address of another pod before the node knows of it.
func (t *attach) checkFree(ctx context.Context) error {
	return t.masq.CheckFree(ctx, t.ref, t.rec.Addrs)
}

// masqueradePod hands the pod to the backend, with ipMasq.
func (t *attach) masqueradePod(ctx context.Context) error {
	return t.masq.Start(ctx, endpoint(t.ref, t.hostEnd, t.podEnd, t.rec.Addrs), &t.rb)
}

// waitUp returns when the host veth carries frames; before, the node has no
// link-local address to ask for the pod's.
func (t *attach) waitUp(ctx context.Context) (err error) {
	t.hostEnd, err = veth.WaitUp(ctx, t.Host, t.hostEnd)
	return err
}

// serveClient lets the pod use the node's hostPorts. With ipMasq its device has programs that do.
func (t *attach) serveClient(ctx context.Context) error {
	if t.masq == nil {
		t.p.ServeClients(ctx, t.args, t.hostEnd.Name)
	}
	return nil
}

// complete marks the record as done and finishes the result.
func (t *attach) complete(context.Context) error {
	t.rec.HostIndex = t.hostEnd.Index
	if err := t.p.record(t.ref).Complete(t.rec); err != nil {
		return err
	}
	t.result.Interfaces = []*types100.Interface{
		cniops.ResultInterface(t.hostEnd, "", t.Version()),
		cniops.ResultInterface(t.podEnd, t.args.Netns, t.Version()),
	}
	return nil
}
