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
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/undo"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// attach is one ADD under way.
type attach struct {
	*request
	p     *plugin
	undos undo.Stack

	ns   *netns.NS
	host *nl.Handle          // in the plugin's own namespace
	pod  *nl.Handle          // in the pod's
	masq *masquerade.Session // nil without masquerading

	bridge  nl.Link
	hostEnd nl.Link
	podEnd  nl.Link
	route   nl.Link // what the host routes the pod's packets on: the bridge, or its leg in the VLAN
	legMade bool    // the result lists the VLAN gateway
	rec     section
	result  *types100.Result
}

// add attaches the pod. Everything that can be wrong with the call is found
// before the first effect; a failure after it takes back what was made.
func (p *plugin) add(ctx context.Context, a *cniplugin.Args) (res types.Result, err error) {
	req, err := parse(a)
	if err != nil {
		return nil, err
	}
	t := &attach{request: req, p: p}
	defer t.close()
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	defer t.undos.Rollback(ctx, &err)
	for _, step := range []func(context.Context) error{
		t.begin,
		t.makeBridge,
		t.makeVeth,
		t.setPort,
		t.spoofCheck,
		t.allocate,
		t.configurePod,
		t.gateways,
		t.masqueradePod,
		t.waitUp,
		t.complete,
	} {
		if err := ctx.Err(); err != nil { // told to end, or out of time: stop where undoing is easy
			return nil, cnierr.Wrap(cnierr.CodeTryAgain, err, "attaching the pod was interrupted")
		}
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return cniconf.Convert(t.result, t.Version())
}

// prepare opens what the steps need and refuses what the kernel's state rules
// out. It changes nothing.
func (t *attach) prepare(ctx context.Context) (err error) {
	if t.ns, err = openNetNS(t.args.Netns); err != nil {
		return err
	}
	if t.host, err = nl.New(); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	if t.pod, err = nl.NewIn(t.ns); err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	if err := t.podNameFree(); err != nil {
		return err
	}
	br, err := t.host.LinkByName(t.Bridge)
	switch {
	case err == nil && br.Kind != "bridge":
		return notABridge(br)
	case err != nil && !errors.Is(err, nl.ErrNotFound):
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	t.bridge = br // its Index is 0 when it has to be made
	if t.MACSpoofChk {
		if err := t.p.NFT.Available(); err != nil {
			return cnierr.Wrap(cnierr.CodeNoDatapath, err, "macspoofchk needs the nft program")
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
	if t.pod != nil {
		t.pod.Close()
	}
	if t.host != nil {
		t.host.Close()
	}
	if t.ns != nil {
		t.ns.Close()
	}
}

func openNetNS(path string) (*netns.NS, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", path)
	}
	return ns, nil
}

func notABridge(l nl.Link) error {
	kind := l.Kind
	if kind == "" {
		kind = "physical or built-in"
	}
	return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("bridge %q: a %s device of that name exists", l.Name, kind), "")
}

// podNameFree makes sure that the pod has no interface of the wanted name; the
// specification demands an error.
func (t *attach) podNameFree() error {
	if why := badIfName(t.args.IfName); why != "" { // "eth%d" passes the skeleton, and the kernel would number it
		return cnierr.New(cnierr.CodeEnvironment, fmt.Sprintf("invalid CNI_IFNAME %q: %s", t.args.IfName, why), "")
	}
	_, err := t.pod.IndexByName(t.args.IfName)
	switch {
	case err == nil:
		return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("CNI_IFNAME %q exists already in %s", t.args.IfName, t.args.Netns), "")
	case errors.Is(err, nl.ErrNotFound):
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", t.args.IfName)
}

// begin writes the intent. Whatever an earlier ADD of this attachment left is
// removed first, since its record is about to be replaced.
func (t *attach) begin(ctx context.Context) error {
	if old := t.p.loadSection(t.ref); old.found {
		if err := t.p.removeDevices(ctx, t.host, t.args, t.ref, old); err != nil {
			return err
		}
	}
	t.rec = section{
		Recorded:   veth.Recorded{HostIfName: veth.HostName(t.ref, 0), HostMAC: veth.RandomMAC().String()},
		Bridge:     t.Bridge,
		Masquerade: t.masq.Backend(),
		SpoofCheck: t.MACSpoofChk,
	}
	if t.ipamType != "" {
		t.rec.IPAM = t.IPAM
	}
	t.undos.Push("attachment record", func(context.Context) error { return t.p.Records.Remove(t.ref, Name) })
	return t.writeIntent()
}

func (t *attach) writeIntent() error {
	return cnierr.Wrap(cnierr.CodeState, t.p.Records.Begin(t.ref, t.args.Netns, Name, t.rec), "record the attachment")
}

// masqueradePod hands the pod to the datapath, with ipMasq.
func (t *attach) masqueradePod(ctx context.Context) error {
	return t.masq.Start(ctx, t.endpoint(), &t.undos)
}

func (t *attach) endpoint() loader.Endpoint {
	return loader.Endpoint{
		Ref:          t.ref,
		HostIfindex:  t.hostEnd.Index,
		RouteIfindex: t.route.Index,
		HostIfName:   t.hostEnd.Name,
		MAC:          t.podEnd.MAC,
		GatewayMAC:   t.route.MAC,
		MTU:          t.podEnd.MTU,
		Addrs:        t.rec.Addrs,
	}
}

// complete fills in what is known only now and marks the record as done.
func (t *attach) complete(context.Context) error {
	t.rec.HostIndex = t.hostEnd.Index
	t.rec.PodMAC = t.podEnd.MAC.String()
	if err := t.p.Records.Complete(t.ref, Name, t.rec); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "complete the attachment record")
	}
	t.result.Interfaces = t.interfaces()
	if dnsIsSet(t.DNS) {
		t.result.DNS = t.DNS
	}
	return nil
}

// interfaces lists what was made, in the reference plugin's order.
func (t *attach) interfaces() []*types100.Interface {
	list := []*types100.Interface{t.iface(t.bridge, ""), t.iface(t.hostEnd, ""), t.iface(t.podEnd, t.args.Netns)}
	if t.legMade {
		list = append(list, t.iface(t.route, ""))
	}
	return list
}

func (t *attach) iface(l nl.Link, sandbox string) *types100.Interface {
	i := &types100.Interface{Name: l.Name, Mac: l.MAC.String(), Sandbox: sandbox}
	if t.Version() == "1.1.0" { // older versions do not have the field, and converting down does not remove it
		i.Mtu = l.MTU
	}
	return i
}
