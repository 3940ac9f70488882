// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Of <linux/netconf.h>, which x/sys lacks.
const (
	netconfIfindex    = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING
	sizeofNetconfMsg  = 4 // struct netconfmsg, padded

	netconfAll int32 = -1 // NETCONFA_IFINDEX_ALL
)

// netconfMsg is struct netconfmsg with its padding.
type netconfMsg struct{ family uint8 }

func (m netconfMsg) Len() int          { return sizeofNetconfMsg }
func (m netconfMsg) Serialize() []byte { return []byte{m.family, 0, 0, 0} }

// Forwarding reports whether the namespace routes packets of a family (FamilyV4 or FamilyV6) between its devices: what
// net.ipv4.ip_forward and net.ipv6.conf.all.forwarding say.
func (h *Handle) Forwarding(family int) (bool, error) { return h.forwarding(family, netconfAll) }

// DeviceForwarding reports whether packets of a family that come in by the device with that index are routed: what
// net.ipv4.conf.DEVICE.forwarding says.
func (h *Handle) DeviceForwarding(family, index int) (bool, error) {
	return h.forwarding(family, int32(index))
}

func (h *Handle) forwarding(family int, index int32) (bool, error) {
	req := h.request(unix.RTM_GETNETCONF, 0)
	req.AddData(netconfMsg{uint8(family)})
	req.AddData(attr32(netconfIfindex, uint32(index))) // -1 stands for all devices
	m, err := h.get(req, unix.RTM_NEWNETCONF)
	if err != nil {
		return false, fmt.Errorf("ask whether packets are forwarded: %w", err)
	}
	if len(m) < sizeofNetconfMsg {
		return false, fmt.Errorf("netconf message of %d bytes: %w", len(m), unix.EINVAL)
	}
	on := false
	err = walk(m[sizeofNetconfMsg:], func(kind uint16, v []byte) {
		if kind == netconfForwarding {
			on = u32(v) != 0
		}
	})
	return on, err
}
