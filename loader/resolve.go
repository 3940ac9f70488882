// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/nl"
)

// Resolve finds what Enable needs to know of the device ifname in the namespace at netnsPath: its host end, the device its
// packets are routed from, hardware addresses, MTU and addresses. Ref is left to the caller. It is for plugins that follow a
// main plugin that is not ours. The error wraps ErrNoDevice where the device has no end in this namespace.
func Resolve(ctx context.Context, netnsPath, ifname string) (Endpoint, error) {
	if err := ctx.Err(); err != nil {
		return Endpoint{}, err
	}
	ns, err := netns.Open(netnsPath)
	if err != nil {
		return Endpoint{}, err
	}
	defer ns.Close()
	inside, err := nl.NewIn(ns)
	if err != nil {
		return Endpoint{}, err
	}
	defer inside.Close()
	dev, err := inside.LinkByName(ifname)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w: %s in %s: %w", ErrNoDevice, ifname, netnsPath, err)
	}
	ep := Endpoint{MAC: dev.MAC, MTU: dev.MTU}
	addrs, err := inside.AddrsOf(dev.Index, nl.FamilyAll)
	if err != nil {
		return Endpoint{}, err
	}
	for _, a := range addrs {
		if a.Scope == nl.ScopeUniverse || a.Prefix.Addr().Is4() {
			ep.Addrs = append(ep.Addrs, a.Prefix)
		}
	}
	return ep, ep.hostEnd(dev, ifname)
}

// hostEnd fills in the host's side of dev, a device in the pod's namespace.
func (e *Endpoint) hostEnd(dev nl.Link, ifname string) error {
	if dev.Kind != "veth" || dev.PeerIndex == 0 {
		return fmt.Errorf("%w: %s is a %s device, which has no host end to attach to", ErrNoDevice, ifname, kindOf(dev))
	}
	host, err := nl.New()
	if err != nil {
		return err
	}
	defer host.Close()
	peer, err := host.LinkByIndex(dev.PeerIndex)
	if err != nil {
		return fmt.Errorf("%w: host end of %s: %w", ErrNoDevice, ifname, err)
	}
	e.HostIfindex, e.HostIfName = peer.Index, peer.Name
	e.RouteIfindex, e.GatewayMAC = peer.Index, peer.MAC
	if peer.MasterIndex != 0 {
		master, err := host.LinkByIndex(peer.MasterIndex)
		if err != nil {
			return fmt.Errorf("%w: bridge of %s: %w", ErrNoDevice, peer.Name, err)
		}
		e.RouteIfindex, e.GatewayMAC = master.Index, master.MAC
	}
	return nil
}

func kindOf(l nl.Link) string {
	if l.Kind == "" {
		return "hardware"
	}
	return l.Kind
}
