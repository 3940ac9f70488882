// SPDX-License-Identifier: Apache-2.0

// Package ipam is the main plugins' side of an IPAM plugin: the ipam section of
// a configuration, the calls, and the addresses of an answer. It owns no state.
package ipam

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Plugin is what is needed of *delegate.Runner.
type Plugin interface {
	Add(ctx context.Context, a *cniskel.Args, ipamType string) (*types100.Result, error)
	Del(ctx context.Context, a *cniskel.Args, ipamType string) error
	Check(ctx context.Context, a *cniskel.Args, ipamType string) error
	GC(ctx context.Context, a *cniskel.Args, ipamType string) error
	Status(ctx context.Context, a *cniskel.Args, ipamType string) error
}

// Type returns ipam.type of a configuration's ipam section, empty for none.
func Type(section json.RawMessage) (string, error) {
	var conf struct {
		Type string `json:"type"`
	}
	err := cniconf.DecodeSection("ipam", section, &conf)
	return conf.Type, err
}

// Allocate asks the IPAM plugin. The release is pushed to rb first,
// because a delegate that failed may still have allocated. There is at least one address.
// The addresses come with their subnets, in the result's order.
func Allocate(ctx context.Context, p Plugin, a *cniskel.Args, ipamType string, rb *rollback.Stack) (*types100.Result, []netip.Prefix, error) {
	rb.Push("address of "+ipamType, func(ctx context.Context) error {
		return p.Del(ctx, a, ipamType)
	})
	res, err := p.Add(ctx, a, ipamType)
	if err != nil {
		return nil, nil, err // the delegate's own code and words
	}
	if len(res.IPs) == 0 {
		return nil, nil, cnierr.Config("ipam.type", ipamType, "the IPAM plugin returned no address")
	}
	addrs, err := Addrs(res)
	return res, addrs, err
}

// Fill asks the IPAM plugin for what the only interface of a result has. Without
// a plugin that is nothing.
func Fill(ctx context.Context, res *types100.Result, p Plugin, a *cniskel.Args, ipamType string, rb *rollback.Stack) ([]netip.Prefix, error) {
	if ipamType == "" {
		return nil, nil
	}
	from, addrs, err := Allocate(ctx, p, a, ipamType, rb)
	if err != nil {
		return nil, err
	}
	res.IPs, res.Routes, res.DNS = from.IPs, from.Routes, from.DNS
	for _, ip := range res.IPs {
		ip.Interface = types100.Int(0)
	}
	return addrs, nil
}

// Addrs returns the addresses of a result with their subnets.
func Addrs(res *types100.Result) ([]netip.Prefix, error) {
	addrs := make([]netip.Prefix, 0, len(res.IPs))
	for _, ip := range res.IPs {
		p, ok := Prefix(&ip.Address)
		if !ok {
			return nil, cnierr.New(cnierr.CodeDecode, "the IPAM plugin returned the address "+ip.Address.String(), "")
		}
		addrs = append(addrs, p)
	}
	return addrs, nil
}

// Release calls the IPAM plugin's DEL, always. When the configuration names no
// IPAM plugin, or no longer, the recorded section takes its place. Call it before
// the interface goes, as upstream does: a DHCP lease is given back through it.
func Release(ctx context.Context, p Plugin, a *cniskel.Args, section, recorded json.RawMessage) error {
	call := *a
	kind, err := Type(section)
	if kind == "" && len(recorded) > 0 {
		stdin, serr := withSection(a.StdinData, recorded)
		if serr != nil {
			return serr
		}
		call.StdinData = stdin
		kind, err = Type(recorded)
	}
	if err != nil || kind == "" {
		a.Log.Debug("no IPAM plugin to call", log.NamedError(log.KeyReason, err))
		return nil // an ADD with such a section has never succeeded
	}
	return p.Del(ctx, &call, kind)
}

// withSection returns the configuration with its ipam section replaced.
func withSection(stdin []byte, section json.RawMessage) ([]byte, error) {
	all := make(map[string]json.RawMessage)
	if err := cniconf.Load(stdin, &all); err != nil {
		return nil, err
	}
	all["ipam"] = section
	out, err := json.Marshal(all)
	return out, cnierr.Wrap(cnierr.CodeDecode, err, "complete the configuration for the IPAM plugin")
}

// Prefix converts an address with its subnet; false when the two do not fit.
func Prefix(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 128 && addr.Is4() && ones >= 96 {
		ones, bits = ones-96, 32
	}
	if bits != addr.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, ones), true
}

// Addr converts an address; the zero Addr for none.
func Addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
