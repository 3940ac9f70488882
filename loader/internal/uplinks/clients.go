// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

const kindBridge = "bridge"

// addClient notes a device, other than the host veth of an endpoint, that clients may be behind. What is an uplink is found later.
func (v *view) addClient(l rtnl.Link, routed func(index int) bool, has addrScope, w deviceRoutes) {
	if l.Kind == kindBridge && has > noAddress || routed(l.Index) || v.leadsToClient(l) && has < inSubnet && !w.nets {
		v.clients = append(v.clients, l)
	}
}

// leadsToClient says of a device, other than a bridge, that one client is behind it: a pod, or a virtual machine.
func (v *view) leadsToClient(l rtnl.Link) bool {
	if !leadsToPod(l) && (l.Kind != "tun" || !l.Ethernet) {
		return false
	}
	return l.MasterIndex == 0 || v.known[l.MasterIndex].Kind == "vrf" // a port is the bridge's concern
}

// ClientDevice returns the device by which the clients behind the device of that name come in: the bridge that it is a port of, else the
// device itself. False: there is no such device, or no client is behind it.
func ClientDevice(h Netlink, name string) (l rtnl.Link, ok bool, err error) {
	v := &view{h: h, known: make(map[int]rtnl.Link)}
	l, err = h.LinkByName(name)
	if err == nil && l.MasterIndex != 0 {
		var master rtnl.Link
		if master, err = linkOf(h, v.known, l.MasterIndex); err == nil && master.Kind == kindBridge {
			return master, true, nil
		}
	}
	if errors.Is(err, rtnl.ErrNotFound) {
		return l, false, nil
	}
	return l, err == nil && (l.Kind == kindBridge || v.leadsToClient(l)), err
}
