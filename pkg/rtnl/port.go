// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From <linux/if_bridge.h>; x/sys does not have them.
const (
	bridgeVLANPVID       = 1 << 1
	bridgeVLANUntagged   = 1 << 2
	bridgeVLANRangeBegin = 1 << 3
	bridgeVLANRangeEnd   = 1 << 4

	attrBridgeVLANInfo = 2 // IFLA_BRIDGE_VLAN_INFO

	extBridgeVLANs = 1 << 2 // RTEXT_FILTER_BRVLAN_COMPRESSED
)

// VLAN is a range of VLAN ids (From = To for one) on a bridge port.
type VLAN struct {
	From, To uint16
	PVID     bool // untagged frames that come in belong to it; only for a single id
	Untagged bool // frames leave without a tag
}

// SetPort sets the flags of the bridge port with that index.
func (h *Handle) SetPort(index int, p Port) error {
	req := h.request(unix.RTM_SETLINK, 0)
	req.AddData(bridgeMsg(index))
	info := attr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(unix.IFLA_BRPORT_MODE, boolAttr(p.Hairpin))
	info.AddRtAttr(unix.IFLA_BRPORT_ISOLATED, boolAttr(p.Isolated))
	req.AddData(info)
	if err := h.do(req); err != nil {
		return fmt.Errorf("set bridge port flags of link index %d: %w", index, err)
	}
	return nil
}

// AddVLANs adds vlans to the bridge port with that index, in one message. It needs CONFIG_BRIDGE_VLAN_FILTERING, else the
// error wraps ErrNotSupported.
func (h *Handle) AddVLANs(index int, vlans ...VLAN) error {
	if err := h.changeVLANs(unix.RTM_SETLINK, index, vlans); err != nil {
		return fmt.Errorf("add VLANs to link index %d: %w", index, err)
	}
	return nil
}

// DelVLANs removes vlans from the bridge port with that index.
func (h *Handle) DelVLANs(index int, vlans ...VLAN) error {
	if err := h.changeVLANs(unix.RTM_DELLINK, index, vlans); err != nil {
		return fmt.Errorf("delete VLANs of link index %d: %w", index, err)
	}
	return nil
}

func (h *Handle) changeVLANs(msgType, index int, vlans []VLAN) error {
	if len(vlans) == 0 {
		return nil
	}
	req := h.request(msgType, 0)
	req.AddData(bridgeMsg(index))
	spec := attr(unix.IFLA_AF_SPEC, nil)
	for _, v := range vlans {
		var flags uint16
		if v.PVID {
			flags |= bridgeVLANPVID
		}
		if v.Untagged {
			flags |= bridgeVLANUntagged
		}
		if v.To <= v.From {
			spec.AddRtAttr(attrBridgeVLANInfo, vlanInfo(flags, v.From))
			continue
		}
		spec.AddRtAttr(attrBridgeVLANInfo, vlanInfo(flags|bridgeVLANRangeBegin, v.From))
		spec.AddRtAttr(attrBridgeVLANInfo, vlanInfo(flags|bridgeVLANRangeEnd, v.To))
	}
	req.AddData(spec)
	return h.do(req)
}

// VLANs returns the VLANs of the bridge port with that index, in ascending order; none where the kernel has no VLAN filtering.
// The kernel only dumps all ports, so callers ask when VLANs are configured, not otherwise.
func (h *Handle) VLANs(index int) ([]VLAN, error) {
	var vlans []VLAN
	err := h.dump(func() *vnl.NetlinkRequest {
		req := h.request(unix.RTM_GETLINK, 0)
		req.AddData(vnl.NewIfInfomsg(unix.AF_BRIDGE))
		req.AddData(attr32(unix.IFLA_EXT_MASK, extBridgeVLANs))
		return req
	}, unix.RTM_NEWLINK, func() { vlans = vlans[:0] }, func(m []byte) error {
		if len(m) < unix.SizeofIfInfomsg || int(vnl.DeserializeIfInfomsg(m).Index) != index {
			return nil
		}
		var spec []byte
		if err := walk(m[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
			if kind == unix.IFLA_AF_SPEC {
				spec = v
			}
		}); err != nil {
			return err
		}
		got, err := parseVLANs(spec)
		vlans = append(vlans, got...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list VLANs of link index %d: %w", index, err)
	}
	return vlans, nil
}

func parseVLANs(spec []byte) ([]VLAN, error) {
	var (
		vlans []VLAN
		begin uint16
	)
	err := walk(spec, func(kind uint16, v []byte) {
		if kind != attrBridgeVLANInfo || len(v) < 4 {
			return
		}
		flags, id := u16(v), u16(v[2:])
		if flags&bridgeVLANRangeBegin != 0 {
			begin = id
			return
		}
		one := VLAN{From: id, To: id, PVID: flags&bridgeVLANPVID != 0, Untagged: flags&bridgeVLANUntagged != 0}
		if flags&bridgeVLANRangeEnd != 0 {
			one.From = begin
		}
		vlans = append(vlans, one)
	})
	return vlans, err
}

// vlanInfo is struct bridge_vlan_info.
func vlanInfo(flags, id uint16) []byte {
	return append(vnl.Uint16Attr(flags), vnl.Uint16Attr(id)...)
}

func bridgeMsg(index int) *vnl.IfInfomsg {
	msg := vnl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	return msg
}

func boolAttr(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}
