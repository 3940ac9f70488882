// SPDX-License-Identifier: Apache-2.0

// Package loopback is the main plugin that sets a pod's loopback interface up.
//
// It owns nothing but that flag: there is no record, no host device and no
// allocation, so GC has nothing to collect. CNI_IFNAME is ignored; the interface
// is always lo.
package loopback

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type.
const Name = "loopback"

const device = "lo"

// noMAC is what a result says of an interface without a hardware address.
const noMAC = "00:00:00:00:00:00"

// Deps are the plugin's dependencies. It needs none beyond the kernel.
type Deps struct{}

// New returns the plugin.
func New(Deps) *cniskel.Plugin {
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      add,
		Del:      del,
		Check:    check,
		GC:       gc,
		Status:   status,
	}
}

// call is what every verb reads of its input.
type call struct {
	cniconf.Common
	prev *types100.Result // nil when there is none
}

func parse(a *cniskel.Args) (*call, error) {
	c, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return nil, err
	}
	prev, err := cniconf.ParseResult("prevResult", c.RawPrevResult, c.Version())
	return &call{c, prev}, err
}

// open enters the pod's namespace with a handle and finds lo.
func open(path string) (*rtnl.Handle, rtnl.Link, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, rtnl.Link{}, cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", path)
	}
	defer ns.Close()
	h, err := rtnl.NewIn(ns)
	if err != nil {
		return nil, rtnl.Link{}, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	lo, err := h.LinkByName(device)
	if err != nil {
		h.Close()
		return nil, lo, cnierr.Wrap(cnierr.CodeKernel, err, "look up the loopback interface")
	}
	return h, lo, nil
}

// add sets lo up. Its result is prevResult as it came, else lo with its first
// address of each family.
func add(ctx context.Context, a *cniskel.Args) (_ types.Result, err error) {
	c, err := parse(a)
	if err != nil {
		return nil, err
	}
	h, lo, err := open(a.Netns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if !lo.Up {
		if err := h.SetUp(lo.Index); err != nil {
			return nil, cnierr.Wrap(cnierr.CodeKernel, err, "set the loopback interface up")
		}
		rb.Push("loopback interface up", func(context.Context) error { return h.SetDown(lo.Index) })
	}
	addrs, err := h.AddrsOf(lo.Index, rtnl.FamilyAll)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "list the addresses of the loopback interface")
	}
	for _, x := range addrs {
		if !x.Prefix.Addr().IsLoopback() {
			return nil, cnierr.New(cnierr.CodeConflict, "the loopback interface has the address "+x.Prefix.String()+", which is not a loopback address", "")
		}
	}
	result := c.prev
	if result == nil {
		result = c.result(a.Netns, lo, addrs)
	}
	return cniconf.Convert(result, c.Version())
}

func (c *call) result(sandbox string, lo rtnl.Link, addrs []rtnl.Addr) *types100.Result {
	i := &types100.Interface{Name: lo.Name, Mac: noMAC, Sandbox: sandbox}
	if c.Version() == "1.1.0" {
		i.Mtu = lo.MTU
	}
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{i}}
	for _, v4 := range []bool{true, false} {
		n := slices.IndexFunc(addrs, func(x rtnl.Addr) bool { return x.Prefix.Addr().Is4() == v4 })
		if n < 0 {
			continue
		}
		p := addrs[n].Prefix
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(0),
			Address:   net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		})
	}
	return r
}

// del sets lo down. A namespace that is gone has none.
func del(_ context.Context, a *cniskel.Args) error {
	if a.Netns == "" {
		return nil
	}
	h, lo, err := open(a.Netns)
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	return cnierr.Wrap(cnierr.CodeKernel, h.SetDown(lo.Index), "set the loopback interface down")
}

// check reports a loopback interface that is down, or that lost the addresses
// that prevResult gives to it.
func check(_ context.Context, a *cniskel.Args) error {
	c, err := parse(a)
	if err != nil {
		return err
	}
	h, lo, err := open(a.Netns)
	if err != nil {
		return err
	}
	defer h.Close()
	if !lo.Up {
		return cnierr.New(cnierr.CodeCheck, "the loopback interface is down", "")
	}
	if c.prev == nil {
		return nil
	}
	have, err := h.AddrsOf(lo.Index, rtnl.FamilyAll)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list the addresses of the loopback interface")
	}
	only4 := withoutIPv6(a.Netns)
	var errs []error
	for _, ip := range c.prev.IPs {
		if !onLoopback(c.prev, ip) || only4 && ip.Address.IP.To4() == nil {
			continue
		}
		want := ip.Address.String()
		if !slices.ContainsFunc(have, func(x rtnl.Addr) bool { return x.Prefix.String() == want }) {
			errs = append(errs, cnierr.New(cnierr.CodeCheck, "the loopback interface does not have the address "+want, ""))
		}
	}
	return errors.Join(errs...)
}

// withoutIPv6 reports that lo has IPv6 switched off, as a sysctl of the pod or of
// a later plugin may have it. It takes the address along.
func withoutIPv6(path string) (off bool) {
	ns, err := netns.Open(path)
	if err != nil {
		return false
	}
	defer ns.Close()
	return ns.Do(func() error {
		v, err := sysctl.Get("net/ipv6/conf/" + device + "/disable_ipv6")
		off = v == "1"
		return err
	}) == nil && off
}

func onLoopback(r *types100.Result, ip *types100.IPConfig) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return false
	}
	i := r.Interfaces[*ip.Interface]
	return i.Name == device && i.Sandbox != ""
}

// gc has nothing to collect, but a call without the list is still wrong.
func gc(_ context.Context, a *cniskel.Args) error {
	_, err := cniconf.ValidAttachments(a.StdinData)
	return err
}

// status only reads the configuration: an ADD needs nothing that could be missing.
func status(_ context.Context, a *cniskel.Args) error {
	_, err := parse(a)
	return err
}
