// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"net"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// inspection is one CHECK under way.
type inspection struct {
	*request
	*cniops.Inspection
	p *plugin

	bridge, hostEnd, podEnd rtnl.Link
	route                   rtnl.Link // as in attach
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same. What later plugins of a chain may change (the MTU by
// tuning, the table of a route by sbr) is compared with prevResult or not at all.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a)
	if err != nil {
		return err
	}
	return cniops.Check(ctx, a, &req.Common, p.IPAM, req.ipamType, func(i *cniops.Inspection) error {
		c := &inspection{request: req, Inspection: i, p: p}
		return c.inspect(ctx)
	})
}

// inspect goes through the devices, then through what hangs on them. A device
// that is missing ends it: the rest would only say so again.
func (c *inspection) inspect(ctx context.Context) error {
	for _, find := range []func() (bool, error){c.checkBridge, c.checkPod, c.checkHostEnd} {
		if there, err := find(); err != nil || !there {
			return err
		}
	}
	for _, step := range []func() error{c.checkPort, c.checkVLANs, c.checkPodNet, c.checkGateways} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := c.checkSpoof(ctx); err != nil {
		return err
	}
	return c.checkMasqueraded(ctx)
}

func (c *inspection) checkBridge() (there bool, err error) {
	c.bridge, there, err = c.Find("bridge "+c.Bridge, func() (rtnl.Link, error) { return c.Host.LinkByName(c.Bridge) })
	if err != nil || !there {
		return there, err
	}
	if c.bridge.Kind != "bridge" {
		c.Differ("%s is not a bridge", c.Bridge)
		return false, nil
	}
	if err := c.useBridge(c.bridge); err != nil {
		return false, err
	}
	br := c.bridge
	if e := cniops.FindInterface(c.Prev, br.Name, ""); e != nil && !c.IsGateway && !c.masquerade() {
		if mac, err := net.ParseMAC(e.Mac); err == nil {
			br.MAC = mac // the MAC of a bridge that another process made follows its ports, and matters to no pod
		}
	}
	c.Add(cniops.Differences(br, c.Prev, "")...)
	if !c.bridge.Up {
		c.Differ("bridge %s is down", c.Bridge)
	}
	if c.PromiscMode && !c.bridge.Promisc {
		c.Differ("bridge %s is not in promiscuous mode", c.Bridge)
	}
	return true, nil
}

func (c *inspection) checkPod() (there bool, err error) {
	name := c.args.IfName
	c.podEnd, there, err = c.Find(name+" in the pod", func() (rtnl.Link, error) { return c.Pod.LinkByName(name) })
	if err != nil || !there {
		return there, err
	}
	if !c.podEnd.Paired() {
		c.Differ("%s is neither veth nor netkit", name)
		return false, nil
	}
	c.Add(cniops.Differences(c.podEnd, c.Prev, c.args.Netns)...)
	if !c.podEnd.Up && !c.DisableContainerIf {
		c.Differ("%s is down", name)
	}
	return true, nil
}

func (c *inspection) checkHostEnd() (there bool, err error) {
	c.hostEnd, there, err = c.Find("the host end of "+c.args.IfName, func() (rtnl.Link, error) { return c.Host.LinkByIndex(c.podEnd.PeerIndex) })
	if err != nil || !there {
		return there, err
	}
	if c.hostEnd.Kind != c.podEnd.Kind || c.hostEnd.PeerIndex != c.podEnd.Index {
		c.Differ("%s is not the other end of %s", c.hostEnd.Name, c.args.IfName)
		return false, nil
	}
	c.Add(cniops.Differences(c.hostEnd, c.Prev, "")...)
	if !c.hostEnd.Up {
		c.Differ("%s is down", c.hostEnd.Name)
	}
	return true, nil
}

func (c *inspection) checkMasqueraded(ctx context.Context) error {
	if !c.masquerade() {
		return nil
	}
	c.Add(c.p.masq().Check(ctx, c.args, loader.Endpoint{
		Ref: c.ref, HostIfindex: c.hostEnd.Index, RouteIfindex: c.route.Index, HostIfName: c.hostEnd.Name, Netkit: c.podEnd.Kind == rtnl.KindNetkit,
		MAC: c.podEnd.MAC, GatewayMAC: c.route.MAC, MTU: c.podEnd.MTU, Addrs: cniconf.PodAddrs(c.Prev, c.args.IfName),
	}, c.conf.Conf, c.p.loadSection(c.ref).Masquerade))
	return nil
}

// checkSpoof looks for the three links of the chain: hook, interface, address.
func (c *inspection) checkSpoof(ctx context.Context) error {
	if !c.MACSpoofChk {
		return nil
	}
	if old := c.p.loadSection(c.ref); old.SpoofBackend == backend.EBPF || !old.found {
		differs := c.checkSpoofEBPF(ctx)
		if old.found || differs == nil {
			c.Add(differs)
			return nil
		}
	}
	n := spoofNamesOf(c.ref)
	s, err := c.p.listSpoof(ctx, n)
	if err != nil {
		return err
	}
	switch {
	case !strings.Contains(s.rules[spoofHook], `"`+c.hostEnd.Name+`"`) || !strings.Contains(s.rules[spoofHook], n.iface):
		c.Differ("the source MAC check is not hooked to %s", c.hostEnd.Name)
	case !strings.Contains(s.rules[n.iface], n.mac) || !strings.Contains(s.rules[n.mac], `"drop"`):
		c.Differ("the source MAC check of %s is incomplete", c.hostEnd.Name)
	case !strings.Contains(strings.ToLower(s.rules[n.mac]), c.podEnd.MAC.String()):
		c.Differ("the source MAC check of %s allows another address than %s", c.hostEnd.Name, c.podEnd.MAC)
	}
	return nil
}
