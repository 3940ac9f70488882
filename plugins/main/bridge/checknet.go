// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// checkPort compares the bridge port and the MTU, which no other plugin changes.
func (c *inspection) checkPort() error {
	if c.hostEnd.MasterIndex != c.bridge.Index || c.hostEnd.Port == nil {
		c.Differ("%s is not a port of %s", c.hostEnd.Name, c.Bridge)
		return nil
	}
	if c.hostEnd.Port.Hairpin != c.HairpinMode {
		c.Differ("hairpin mode of %s is %v, not %v", c.hostEnd.Name, c.hostEnd.Port.Hairpin, c.HairpinMode)
	}
	if c.hostEnd.Port.Isolated != c.PortIsolation {
		c.Differ("isolation of %s is %v, not %v", c.hostEnd.Name, c.hostEnd.Port.Isolated, c.PortIsolation)
	}
	if c.MTU != 0 && c.hostEnd.MTU != c.MTU {
		c.Differ("%s has the MTU %d, not %d", c.hostEnd.Name, c.hostEnd.MTU, c.MTU)
	}
	return nil
}

// checkVLANs looks for the configured VLANs; others may have been added.
func (c *inspection) checkVLANs() error {
	want := portVLANs(c.VLAN, c.trunk)
	if len(want) == 0 {
		return nil
	}
	have, err := c.Host.VLANs(c.hostEnd.Index)
	if err != nil {
		return err
	}
	for _, w := range want {
		if !covered(w, have) {
			c.Differ("%s is not in VLAN %d-%d as configured", c.hostEnd.Name, w.From, w.To)
		}
	}
	return nil
}

// covered reports that every VLAN of w is in have with w's flags. The kernel
// joins neighbours with equal flags, so ranges need not be the same.
func covered(w rtnl.VLAN, have []rtnl.VLAN) bool {
	for id := w.From; id <= w.To; id++ {
		if !slices.ContainsFunc(have, func(h rtnl.VLAN) bool {
			return h.From <= id && id <= h.To && h.PVID == w.PVID && h.Untagged == w.Untagged
		}) {
			return false
		}
	}
	return true
}

// checkPodNet compares the pod's addresses and routes with prevResult's.
func (c *inspection) checkPodNet() error {
	diffs, err := podiface.Check(c.Pod, c.podEnd, c.Prev)
	c.Add(diffs...)
	return err
}

// checkGateways compares the host's side: addresses and forwarding.
func (c *inspection) checkGateways() error {
	c.route = c.bridge
	if !c.IsGateway || c.ipamType == "" {
		return nil
	}
	if c.VLAN != 0 {
		leg, there, err := c.Find("VLAN gateway "+c.vlanGatewayName(), func() (rtnl.Link, error) { return c.Host.LinkByName(c.vlanGatewayName()) })
		if err != nil || !there {
			return err
		}
		c.route = leg
		if err := c.checkLeg(leg); err != nil {
			return err
		}
	}
	have, err := c.Host.AddrsOf(c.route.Index, rtnl.FamilyAll)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	addrs, gateways := c.podGateways()
	for _, w := range gatewayPrefixes(addrs, gateways) {
		if !slices.ContainsFunc(have, func(a rtnl.Addr) bool { return a.Prefix == w }) {
			c.Differ("%s does not have the gateway address %s", c.route.Name, w)
		}
	}
	for _, key := range veth.ForwardKeys(c.route.Name, addrs) {
		if v, err := sysctl.Get(key); err != nil || v == "0" {
			c.Differ("forwarding is off: %s", key)
		}
	}
	return nil
}

// checkLeg compares the VLAN gateway's device.
func (c *inspection) checkLeg(leg rtnl.Link) error {
	in, err := c.legInVLAN(c.Host, c.bridge, leg)
	if err == nil && !in {
		c.Differ("the VLAN gateway %s is not in VLAN %d", leg.Name, c.VLAN)
	}
	if !leg.Up {
		c.Differ("the VLAN gateway %s is down", leg.Name)
	}
	return err
}

// podGateways returns this interface's addresses and, side by side, their
// gateways.
func (c *inspection) podGateways() ([]netip.Prefix, []netip.Addr) {
	own := cniconf.PodAddrs(c.Prev, c.args.IfName)
	var (
		addrs    []netip.Prefix
		gateways []netip.Addr
	)
	for _, ip := range c.Prev.IPs {
		if p, ok := ipam.Prefix(&ip.Address); ok && slices.Contains(own, p) {
			addrs, gateways = append(addrs, p), append(gateways, ipam.Addr(ip.Gateway))
		}
	}
	return addrs, gateways
}
