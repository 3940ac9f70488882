// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

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
	*request
	p  *plugin
	rb rollback.Stack
	*ends

	old    remembered // of an earlier ADD of this attachment
	before former     // what the device was like; zero in DPDK mode
	dev    rtnl.Link
	addrs  []netip.Prefix
	rec    section
	result *types100.Result
}

// add lends the pod the device. Everything that can be wrong with the call is
// found before the first effect; a failure after it takes back what was done.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	req, err := p.parse(a)
	if err != nil {
		return nil, err
	}
	e, err := open(a.Netns)
	if err != nil {
		return nil, err
	}
	defer e.close()
	t := &attach{request: req, p: p, ends: e, result: &types100.Result{CNIVersion: types100.ImplementedSpecVersion}}
	if err := t.prepare(); err != nil {
		return nil, err
	}
	defer t.rb.Rollback(ctx, &err)
	if err := cniops.RunSteps(ctx, t.begin, t.move, t.allocate, t.configure, t.complete); err != nil {
		return nil, err
	}
	return cniconf.Convert(t.result, t.Version())
}

// prepare looks at both sides and refuses what cannot work. It changes nothing.
func (t *attach) prepare() error {
	t.rec = section{DPDK: t.dpdk, PCI: t.PCIBusID, NetNS: t.podNS.Inode()}
	if t.ipamType != "" {
		t.rec.IPAM = t.IPAM
	}
	t.old = t.p.remember(t.ref)
	if !t.dpdk {
		if err := t.site.EnsureIfNameFree(t.args.IfName); err != nil {
			return err
		}
	}
	if t.old.found {
		return nil // the device may be out still: it is looked for when it has come back
	}
	return t.look()
}

// look finds the device and notes what it is like.
func (t *attach) look() error {
	if t.dpdk {
		return nil
	}
	l, own, err := t.p.find(t.host, t.request)
	if err != nil {
		return err
	}
	if t.before, err = noteFormer(t.host, l); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look at %s", l.Name)
	}
	ns, addrs := t.rec.NetNS, t.rec.IPAM
	t.rec = describe(l, own)
	t.rec.NetNS, t.rec.IPAM, t.rec.Path = ns, addrs, t.path()
	if t.rec.PCI = t.p.sys.pciOf(l.Name); t.rec.PCI == "" && t.byPCI() {
		t.rec.PCI = t.PCIBusID
	}
	if own == l.Alias { // it was lent before, and lost
		t.rec.Alias = ""
	}
	return nil
}

// begin writes the intent. What an earlier ADD of this attachment holds is
// given back first, since its record is about to be replaced.
func (t *attach) begin(ctx context.Context) error {
	if t.old.found {
		if err := t.p.giveBack(ctx, t.args, t.ref, t.old); err != nil {
			return err
		}
		if err := t.look(); err != nil {
			return err
		}
	}
	return t.p.record(t.ref).Begin(&t.rb, t.args.Netns, t.rec)
}

// move takes the device into the pod. The alias comes first: from then on the
// device tells its own name wherever it is.
func (t *attach) move(context.Context) error {
	if t.dpdk {
		return nil
	}
	t.rb.Push("device "+t.rec.Device, func(context.Context) error {
		if err := t.returnDevice(t.rec, t.args.IfName, t.args.Log); err != nil {
			return err
		}
		return t.before.restore(t.host, t.rec)
	})
	l := t.before.link
	if err := t.host.SetLink(l.Index, rtnl.LinkChange{Alias: &t.rec.Device}); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "note the name of %s in its alias", l.Name)
	}
	fd := t.podNS.Fd()
	if err := t.host.SetLink(l.Index, rtnl.LinkChange{NetNS: &fd, Name: &t.args.IfName}); err != nil {
		if errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeConflict, err, "CNI_IFNAME %q exists already in %s", t.args.IfName, t.args.Netns)
		}
		return cnierr.Wrap(cnierr.CodeKernel, err, "move %s to the pod", l.Name)
	}
	var err error
	t.dev, err = t.pod.LinkByName(t.args.IfName)
	return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", t.args.IfName)
}

// allocate asks the IPAM plugin.
func (t *attach) allocate(ctx context.Context) (err error) {
	t.addrs, err = ipam.Fill(ctx, t.result, t.p.IPAM, t.args, t.ipamType, &t.rb)
	return err
}

// configure gives the device its addresses and sets it up.
func (t *attach) configure(ctx context.Context) error {
	if t.dpdk {
		return nil
	}
	dev := podiface.Interface{NS: t.podNS, Link: t.dev, Pod: t.pod, Log: t.args.Log, Announce: true}
	return dev.ConfigureResult(ctx, t.addrs, t.result)
}

// complete marks the record as done and says what the pod has got.
func (t *attach) complete(context.Context) error {
	if err := t.p.record(t.ref).Complete(t.rec); err != nil {
		return err
	}
	t.dev.Name = t.args.IfName // in DPDK mode all that is known of it
	i := cniops.ResultInterface(t.dev, t.args.Netns, t.Version())
	if t.Version() == "1.1.0" { // older versions do not have the field, and converting down does not remove it
		i.PciID = t.rec.PCI
	}
	t.result.Interfaces = []*types100.Interface{i}
	t.result.DNS = cniops.DNS(t.DNS, t.result.DNS)
	return nil
}
