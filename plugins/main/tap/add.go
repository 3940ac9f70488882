// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"errors"
	"fmt"
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
	*cniops.Namespaces
	p      *plugin
	rb     rollback.Stack
	bridge rtnl.Link // zero: none
	dev    rtnl.Link
	addrs  []netip.Prefix
	result *types100.Result
	rec    section
}

// add makes the device. Everything that can be wrong with the call is found
// before the first effect; a failure after it takes back what was made.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	req, err := parse(a)
	if err != nil {
		return nil, err
	}
	site, err := cniops.Open(a.Netns)
	if err != nil {
		return nil, err
	}
	defer site.Close()
	t := &attach{request: req, Namespaces: site, p: p, result: &types100.Result{CNIVersion: types100.ImplementedSpecVersion}}
	if err := t.prepare(); err != nil {
		return nil, err
	}
	defer t.rb.Rollback(ctx, &err)
	if err := cniops.RunSteps(ctx, t.begin, t.makeTap, t.allocate, t.configure, t.complete); err != nil {
		return nil, err
	}
	return cniconf.Convert(t.result, t.Version())
}

// prepare refuses what the kernel's state rules out. It changes nothing.
func (t *attach) prepare() (err error) {
	if err := t.EnsureIfNameFree(t.args.IfName); err != nil {
		return err
	}
	if err := rtnl.TunAvailable(); err != nil {
		return noTun(err, cnierr.CodeKernel)
	}
	t.bridge, err = podBridge(t.Pod, t.Bridge)
	return err
}

// podBridge returns the bridge of that name in the pod; the zero Link for none.
func podBridge(pod *rtnl.Handle, name string) (rtnl.Link, error) {
	if name == "" {
		return rtnl.Link{}, nil
	}
	br, err := pod.LinkByName(name)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
		return br, cnierr.Config("bridge", name, "there is no such device in the pod's network namespace")
	case err != nil:
		return br, cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge %s in the pod", name)
	case br.Kind != "bridge":
		return br, cnierr.Config("bridge", name, "the pod's device of that name is no bridge")
	}
	return br, nil
}

// begin writes the intent.
func (t *attach) begin(context.Context) error {
	t.rec = section{NetNS: t.NS.Inode()}
	if t.ipamType != "" {
		t.rec.IPAM = t.IPAM
	}
	return t.p.record(t.ref).Begin(&t.rb, t.args.Netns, t.rec)
}

func (t *attach) makeTap(context.Context) error {
	spec := rtnl.TapSpec{Name: t.args.IfName, Owner: t.Owner, Group: t.Group, MultiQueue: t.MultiQueue}
	if err := t.NS.Do(func() error { return t.p.makeDevice(spec, t.SELinuxContext) }); err != nil {
		if errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeConflict, err, "CNI_IFNAME %q exists already in %s", t.args.IfName, t.args.Netns)
		}
		return cnierr.Wrap(cnierr.CodeKernel, err, "make the tap device")
	}
	t.rb.Push("tap "+t.args.IfName, func(context.Context) error { return removeTap(t.Pod, t.args.IfName) })
	dev, err := t.Pod.LinkByName(t.args.IfName)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", t.args.IfName)
	}
	return t.setLink(dev)
}

// setLink sets what the driver's own calls cannot, by one message.
func (t *attach) setLink(dev rtnl.Link) (err error) {
	change := rtnl.LinkChange{MAC: t.mac}
	if t.MTU != 0 {
		change.MTU = &t.MTU
	}
	if t.bridge.Index != 0 {
		change.Master = &t.bridge.Index
	}
	if t.mac != nil || t.MTU != 0 || t.bridge.Index != 0 {
		if err := t.Pod.SetLink(dev.Index, change); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "set %s of %s", t.wishes(), dev.Name)
		}
	}
	t.dev, err = t.Pod.LinkByIndex(dev.Index)
	return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", t.args.IfName)
}

// wishes names what setLink sets, for its error.
func (t *attach) wishes() string {
	var s string
	if t.mac != nil {
		s += fmt.Sprintf("mac %s, ", t.mac)
	}
	if t.MTU != 0 {
		s += fmt.Sprintf("mtu %d, ", t.MTU)
	}
	if t.Bridge != "" {
		s += fmt.Sprintf("bridge %s, ", t.Bridge)
	}
	return s[:len(s)-2]
}

func (t *attach) allocate(ctx context.Context) (err error) {
	t.addrs, err = ipam.Fill(ctx, t.result, t.p.IPAM, t.args, t.ipamType, &t.rb)
	return err
}

func (t *attach) configure(ctx context.Context) error {
	dev := podiface.Interface{NS: t.NS, Link: t.dev, Pod: t.Pod, Log: t.args.Log}
	return dev.ConfigureResult(ctx, t.addrs, t.result)
}

func (t *attach) complete(context.Context) error {
	if err := t.p.record(t.ref).Complete(t.rec); err != nil {
		return err
	}
	t.result.Interfaces = []*types100.Interface{cniops.ResultInterface(t.dev, t.args.Netns, t.Version())}
	t.result.DNS = cniops.DNS(t.DNS, t.result.DNS)
	return nil
}

func noTun(err error, code uint) error {
	return cnierr.Wrap(code, err, "tap devices cannot be made on this node")
}
