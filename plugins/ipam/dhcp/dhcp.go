// SPDX-License-Identifier: Apache-2.0

// Package dhcp is the DHCP IPAM plugin: addresses leased from a server on the
// network that the pod's interface is on. IPv4 only, as upstream.
//
// A lease has to be renewed as long as the pod lives, which a plugin that is
// executed and ends cannot do. So there are two roles: the plugin asks a daemon
// on this node over a Unix socket, and the daemon (Daemon) talks to the servers
// and keeps the leases. The socket's protocol is upstream's, so either
// side can be replaced first. The package sees neither netlink nor BPF.
package dhcp

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type in a configuration.
const Name = "dhcp"

// New returns the plugin, the asking side.
func New() *cniskel.Plugin {
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.All(),
		Add: add, Del: del, Check: check, GC: gc, Status: status,
	}
}

// remote is the call as the daemon wants it: it has a working directory of its
// own.
func remote(a *cniskel.Args) *skel.CmdArgs {
	c := &skel.CmdArgs{
		ContainerID: a.ContainerID, Netns: a.Netns, IfName: a.IfName, Args: a.CmdArgs.Args, Path: a.Path,
		NetnsOverride: a.NetnsOverride, StdinData: a.StdinData,
	}
	if abs, err := filepath.Abs(c.Netns); err == nil && c.Netns != "" {
		c.Netns = abs
	}
	return c
}

// allocate asks for the attachment's lease, the one there is or a new one.
func allocate(ctx context.Context, a *cniskel.Args, c *config) (*types100.Result, error) {
	// The options are read here too: a mistake in them has its own code then.
	if _, err := c.exchangeOptions(a.Args); err != nil {
		return nil, err
	}
	res := &types100.Result{}
	if err := call(ctx, c.socket(), methodAllocate, remote(a), res); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeTryAgain, err, "get a lease from the DHCP daemon")
	}
	res.CNIVersion = types100.ImplementedSpecVersion
	return res, nil
}

func add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	c, err := load(a.StdinData)
	if err != nil {
		return nil, err
	}
	res, err := allocate(ctx, a, c)
	if err != nil {
		return nil, err
	}
	return cniconf.Convert(res, c.Version())
}

// del must end even when the daemon is down: the pod is going, and its lease
// expires at the server. The daemon that comes back finds the pod gone.
func del(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	err = call(ctx, c.socket(), methodRelease, remote(a), &struct{}{})
	if isUnreachable(err) {
		a.Log.Warn("the DHCP daemon cannot be asked to release the lease; the server keeps it until it expires", log.Error(err))
		return nil
	}
	return cnierr.Wrap(cnierr.CodeTryAgain, err, "release the lease at the DHCP daemon")
}

// check asks for the lease again, which a daemon that lost it takes anew, and
// compares its address with prevResult.
func check(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := c.Chained()
	if err != nil {
		return err
	}
	res, err := allocate(ctx, a, c)
	if err != nil {
		return err
	}
	for _, ip := range res.IPs {
		if !holds(prev, ip.Address) {
			return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("the lease is for %s, which prevResult does not hold", ip.Address.String()), "")
		}
	}
	return nil
}

func holds(res *types100.Result, want net.IPNet) bool {
	for _, ip := range res.IPs {
		if ip.Address.String() == want.String() {
			return true
		}
	}
	return false
}

// gc has the daemon release what is not in the list of valid attachments. The
// reference's daemon has no such method; there is nothing to do then.
func gc(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	if _, err := cniconf.ValidAttachments(a.StdinData); err != nil {
		return err
	}
	err = call(ctx, c.socket(), methodGC, remote(a), &struct{}{})
	switch {
	case isUnreachable(err), isUnknownMethod(err):
		a.Log.Warn("no leases collected", log.Error(err))
		return nil
	}
	return cnierr.Wrap(cnierr.CodeTryAgain, err, "collect leases at the DHCP daemon")
}

func status(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	if _, err := c.exchangeOptions(a.Args); err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeUnavailable, ping(ctx, c.socket()), "the DHCP daemon does not answer: is \"dhcp daemon\" running?")
}
