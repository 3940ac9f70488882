// SPDX-License-Identifier: Apache-2.0

// Package hostlocal is the host-local IPAM plugin: addresses from ranges of the
// configuration, reserved in files on this node.
//
// It keeps the upstream plugin's directory to the byte, so a node can switch
// either way with pods running, and both may even take turns. What it adds
// lives beside that directory and may vanish at any time: an index by owner
// (index.go) and the notes that tell reservations of an earlier boot
// (boots.go). It sees neither netlink nor BPF.
package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/ipalloc"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type in a configuration.
const Name = "host-local"

// Deps are what the plugin needs of the node. The zero value is the real node.
type Deps struct {
	// Node identifies machine and boot; nil reads the running kernel's.
	Node func() Node
}

type plugin struct{ node func() Node }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{node: d.Node}
	if p.node == nil {
		p.node = thisNode
	}
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.All(),
		Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status,
	}
}

// add reserves one address from each set. On any error it gives back what this
// call took, and only that.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	c, err := load(a)
	if err != nil {
		return nil, err
	}
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes}
	if c.resolvConf != "" {
		if out.DNS, err = readResolvConf(c.resolvConf); err != nil {
			return nil, err
		}
	}
	wanted, err := c.distribute()
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx, c, p.node(), a.Log, true)
	if err != nil {
		return nil, stateError(err, c)
	}
	defer s.close()
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)

	owner := ownerKey(a.ContainerID, a.IfName)
	for i, set := range c.sets {
		if !wanted[i].addr.IsValid() {
			if err := s.refuseSecond(a, set); err != nil {
				return nil, err
			}
		}
		addr, err := s.reserve(owner, set, i, wanted[i])
		if err != nil {
			return nil, stateError(err, c)
		}
		rb.Push("release "+addr.String(), func(context.Context) error { return s.release(owner, addr) })
		r, _ := set.Find(addr)
		out.IPs = append(out.IPs, ipConfig(addr, r))
	}
	return cniconf.Convert(out, c.version)
}

func ipConfig(addr netip.Addr, r ipalloc.Range) *types100.IPConfig {
	return &types100.IPConfig{
		Address: net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(r.Subnet.Bits(), addr.BitLen())},
		Gateway: r.Gateway.AsSlice(),
	}
}

// distribute gives each set at most one of the requested addresses: the first
// that it contains. A request that no set takes is an error, as is one for a
// gateway; both before anything is reserved.
func (c *config) distribute() ([]request, error) {
	wanted := make([]request, len(c.sets))
	for _, q := range c.requested {
		taken, contained := false, false
		for i, set := range c.sets {
			r, ok := set.Find(q.addr)
			if !ok {
				continue
			}
			if r.Gateway == q.addr {
				return nil, cnierr.Config(q.key, q.addr.String(), "the address is the gateway of "+r.Subnet.String())
			}
			contained = true
			if !wanted[i].addr.IsValid() {
				wanted[i], taken = q, true
				break
			}
		}
		switch {
		case !contained:
			return nil, cnierr.Config(q.key, q.addr.String(), "the address is in none of the ranges")
		case !taken:
			return nil, cnierr.Config(q.key, q.addr.String(), "another requested address uses its range set already")
		}
	}
	return wanted, nil
}

// refuseSecond: an attachment has one address of a set. Two ADDs of the same
// attachment are a mistake of the runtime that must not cost a second address.
func (s *store) refuseSecond(a *cniskel.Args, set ipalloc.Set) error {
	have, err := s.owned(a.ContainerID, a.IfName, true)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "look for earlier reservations")
	}
	for _, r := range have {
		if _, ok := set.Find(r.addr); ok {
			return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("%s has been allocated to %s already; an attachment gets one address of a range set", r.addr, a.ContainerID), "")
		}
	}
	return nil
}

// del releases every address of the attachment. It works from the store alone:
// ranges that have changed or are wrong by now do not hide a reservation.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, confErr := load(a)
	if c == nil {
		return confErr
	}
	if confErr != nil && !errors.Is(confErr, errTooManyAddresses) {
		a.Log.Warn("the configuration is not valid; releasing all the same", log.Error(confErr))
		confErr = nil
	}
	s, err := openStore(ctx, c, p.node(), a.Log, false)
	if errors.Is(err, fs.ErrNotExist) {
		return confErr
	}
	if err != nil {
		return stateError(err, c)
	}
	defer s.close()
	have, err := s.owned(a.ContainerID, a.IfName, false)
	errs := []error{confErr, cnierr.Wrap(cnierr.CodeState, err, "find the reservations of %s", a.ContainerID)}
	for _, r := range have {
		errs = append(errs, cnierr.Wrap(cnierr.CodeState, s.release(r.owner, r.addr), "release %s", r.addr))
	}
	return errors.Join(errs...)
}

// check compares the reservations with prevResult: the attachment must own
// one, and every address of prevResult that lies in our ranges must be its own.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a)
	if err != nil {
		return err
	}
	prev, err := cniconf.PrevResult(a.StdinData, c.version)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, c, p.node(), a.Log, false)
	if errors.Is(err, fs.ErrNotExist) {
		return missing(a)
	}
	if err != nil {
		return stateError(err, c)
	}
	defer s.close()
	have, err := s.owned(a.ContainerID, a.IfName, false)
	if err != nil {
		return stateError(err, c)
	}
	if len(have) == 0 {
		return missing(a)
	}
	if prev == nil {
		return nil
	}
	return c.compare(a, prev, have)
}

func (c *config) compare(a *cniskel.Args, prev *types100.Result, have []reservation) error {
	own := map[netip.Addr]bool{}
	for _, r := range have {
		own[r.addr] = true
	}
	for _, ip := range prev.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		if !ok || own[addr] {
			continue
		}
		for _, set := range c.sets {
			if _, ok := set.Find(addr); ok {
				return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("address %s is not reserved for container %s interface %s", addr, a.ContainerID, a.IfName), "")
			}
		}
	}
	return nil
}

func missing(a *cniskel.Args) error {
	return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("no address is reserved for container %s interface %s", a.ContainerID, a.IfName), "")
}

// gc releases every address whose attachment is not in the list. A reservation
// without an interface name (old versions wrote those) stays while its
// container has any valid attachment.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	valid, err := cniconf.ValidAttachments(a.StdinData)
	if err != nil {
		return err
	}
	c, err := load(a)
	if c == nil {
		return err
	}
	s, err := openStore(ctx, c, p.node(), a.Log, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return stateError(err, c)
	}
	defer s.close()
	keep := map[string]bool{}
	for _, v := range valid {
		keep[ownerKey(v.ContainerID, v.IfName)] = true
		keep[ownerKey(v.ContainerID, "")] = true
	}
	all, unread, err := s.scan()
	errs := []error{cnierr.Wrap(cnierr.CodeState, errors.Join(err, unread), "list the reservations")}
	for _, r := range all {
		if keep[r.owner] {
			continue
		}
		a.Log.Info("released by GC", log.Stringer(log.KeyAddress, r.addr))
		errs = append(errs, cnierr.Wrap(cnierr.CodeState, s.release(r.owner, r.addr), "release %s", r.addr))
	}
	return errors.Join(errs...)
}

func stateError(err error, c *config) error {
	var coded *cnierr.Error
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, err, "use the reservations of network %s in %s", c.network, c.dataDir)
}
