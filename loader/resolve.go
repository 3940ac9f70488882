// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// ErrNoHostEnd is the ErrNoDevice of a device that is whole inside the pod.
var ErrNoHostEnd = fmt.Errorf("%w: no host end to attach to", ErrNoDevice)

// Resolve finds what Enable needs to know of the device ifname in the namespace at netnsPath: its host veth, the device its
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
	inside, err := rtnl.NewIn(ns)
	if err != nil {
		return Endpoint{}, err
	}
	defer inside.Close()
	dev, err := inside.LinkByName(ifname)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w: %s in %s: %w", ErrNoDevice, ifname, netnsPath, err)
	}
	ep := Endpoint{MAC: dev.MAC, MTU: dev.MTU, Podns: &PodnsDevice{Netns: netnsPath, Ifindex: dev.Index, IfName: ifname}}
	addrs, err := inside.AddrsOf(dev.Index, rtnl.FamilyAll)
	if err != nil {
		return Endpoint{}, err
	}
	for _, a := range addrs {
		if a.Scope == rtnl.ScopeUniverse || a.Prefix.Addr().Is4() {
			ep.Addrs = append(ep.Addrs, a.Prefix)
		}
	}
	return ep, ep.hostEnd(dev, ifname)
}

// ResolvePodns is Resolve for features that also work inside the pod's namespace: a device without a host end (macvlan, ipvlan,
// vlan, a device of the host) is returned with HostIfindex 0 instead of ErrNoDevice.
func ResolvePodns(ctx context.Context, netnsPath, ifname string) (Endpoint, error) {
	ep, err := Resolve(ctx, netnsPath, ifname)
	if errors.Is(err, ErrNoHostEnd) {
		return ep, nil
	}
	return ep, err
}

// hostEnd fills in the host's side of dev, a device in the pod's namespace.
func (e *Endpoint) hostEnd(dev rtnl.Link, ifname string) error {
	if !dev.Paired() || dev.PeerIndex == 0 {
		return fmt.Errorf("%w: %s is a %s device", ErrNoHostEnd, ifname, kindOf(dev))
	}
	host, err := rtnl.New()
	if err != nil {
		return err
	}
	defer host.Close()
	peer, err := host.LinkByIndex(dev.PeerIndex)
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && (peer.Kind != dev.Kind || peer.PeerIndex != dev.Index) {
		return fmt.Errorf("%w: the other end of %s is not in this namespace", ErrNoHostEnd, ifname)
	}
	if err != nil {
		return fmt.Errorf("%w: host end of %s: %w", ErrNoDevice, ifname, err)
	}
	e.HostIfindex, e.HostIfName, e.Netkit = peer.Index, peer.Name, peer.Kind == rtnl.KindNetkit
	e.RouteIfindex, e.RouteIfName, e.GatewayMAC = peer.Index, peer.Name, peer.MAC
	if peer.MasterIndex != 0 {
		master, err := host.LinkByIndex(peer.MasterIndex)
		if err != nil {
			return fmt.Errorf("%w: bridge of %s: %w", ErrNoDevice, peer.Name, err)
		}
		e.RouteIfindex, e.RouteIfName, e.GatewayMAC = master.Index, master.Name, master.MAC
	}
	return nil
}

func kindOf(l rtnl.Link) string {
	if l.Kind == "" {
		return "hardware"
	}
	return l.Kind
}
