// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// attach is one ADD under way.
type attach struct {
	*request
	p  *plugin
	rb rollback.Stack

	*cniops.Namespaces
	masq  *masquerade.Session // nil without masquerading
	spoof loader.Interface    // checks source MACs; nil: nftables does, or nothing

	bridge     rtnl.Link
	madeBridge bool
	hostEnd    rtnl.Link
	podEnd     rtnl.Link
	route      rtnl.Link // what the host routes the pod's packets on: the bridge, or its leg in the VLAN
	legMade    bool      // the result lists the VLAN gateway
	rec        section
	result     *types100.Result
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
		t.begin, t.makeBridge, t.makeVeth, t.setPort, t.spoofCheck, t.allocate, t.checkFree, t.configurePod, t.gateways, t.masqueradePod, t.waitUp, t.serveClients, t.complete,
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
	br, err := t.Host.LinkByName(t.Bridge)
	switch {
	case err == nil && br.Kind != "bridge":
		return notABridge(br)
	case err != nil && !errors.Is(err, rtnl.ErrNotFound):
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	t.bridge = br // its Index is 0 when it has to be made
	if err := t.useBridge(br); err != nil {
		return err
	}
	if t.MACSpoofChk {
		if t.spoof, err = t.p.openSpoof(ctx, t.args); err != nil {
			return err
		}
	}
	if t.masquerade() {
		if t.masq, err = t.p.masq().Begin(ctx, t.args, t.Conf); err != nil {
			return err
		}
	}
	return nil
}

func (t *attach) close() {
	t.masq.Close()
	if t.spoof != nil {
		_ = t.spoof.Close()
	}
	t.Namespaces.Close()
}

func notABridge(l rtnl.Link) error {
	kind := l.Kind
	if kind == "" {
		kind = "physical or built-in"
	}
	return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("bridge %q: a %s device of that name exists", l.Name, kind), "")
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
		Bridge:     t.Bridge,
		Masquerade: t.masq.Backend(),
		SpoofCheck: t.MACSpoofChk,
	}
	if t.spoof != nil {
		t.rec.SpoofBackend = backend.EBPF
	}
	if t.ipamType != "" {
		t.rec.IPAM = t.IPAM
	}
	return t.p.record(t.ref).Begin(&t.rb, t.args.Netns, t.rec)
}

// checkFree refuses an address of another pod before the node knows of it.
func (t *attach) checkFree(ctx context.Context) error {
	return t.masq.CheckFree(ctx, t.ref, t.rec.Addrs)
}

// masqueradePod hands the pod to the datapath, with ipMasq.
func (t *attach) masqueradePod(ctx context.Context) error {
	return t.masq.Start(ctx, t.endpoint(), &t.rb)
}

func (t *attach) endpoint() loader.Endpoint {
	return loader.Endpoint{
		Ref:          t.ref,
		HostIfindex:  t.hostEnd.Index,
		RouteIfindex: t.route.Index,
		HostIfName:   t.hostEnd.Name,
		Netkit:       t.podEnd.Kind == rtnl.KindNetkit,
		MAC:          t.podEnd.MAC,
		GatewayMAC:   t.route.MAC,
		MTU:          t.podEnd.MTU,
		Addrs:        t.rec.Addrs,
	}
}

// serveClients lets pods on a new bridge use the node's hostPorts. An older one has what that needs since its first pod, or since the last look at
// the node.
func (t *attach) serveClients(ctx context.Context) error {
	if t.madeBridge && t.masq == nil {
		t.p.ServeClients(ctx, t.args, t.Bridge)
	}
	return nil
}

// complete fills in what is known only now and marks the record as done.
func (t *attach) complete(context.Context) error {
	t.rec.HostIndex = t.hostEnd.Index
	t.rec.PodMAC = t.podEnd.MAC.String()
	if err := t.p.record(t.ref).Complete(t.rec); err != nil {
		return err
	}
	t.result.Interfaces = t.interfaces()
	t.result.DNS = cniops.DNS(t.DNS, t.result.DNS)
	return nil
}

// interfaces lists what was made, in upstream's plugin's order.
func (t *attach) interfaces() []*types100.Interface {
	v := t.Version()
	list := []*types100.Interface{cniops.ResultInterface(t.bridge, "", v), cniops.ResultInterface(t.hostEnd, "", v), cniops.ResultInterface(t.podEnd, t.args.Netns, v)}
	if t.legMade {
		list = append(list, cniops.ResultInterface(t.route, "", v))
	}
	return list
}
