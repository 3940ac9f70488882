// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DropAltNames takes a link's alternative names away. One of them that is in use in another namespace keeps the link from moving there.
func (h *Handle) DropAltNames(index int) error {
	req := h.request(unix.RTM_GETLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	m, err := h.get(req, unix.RTM_NEWLINK)
	if err != nil {
		return fmt.Errorf("link index %d: %w", index, err)
	}
	list, n := attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil), 0
	err = walk(m[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		if kind&^unix.NLA_F_NESTED != unix.IFLA_PROP_LIST {
			return
		}
		_ = walk(v, func(kind uint16, v []byte) {
			if kind == unix.IFLA_ALT_IFNAME {
				list.AddRtAttr(unix.IFLA_ALT_IFNAME, v)
				n++
			}
		})
	})
	if err != nil || n == 0 {
		return err
	}
	del := h.request(unix.RTM_DELLINKPROP, 0)
	del.AddData(msg)
	del.AddData(list)
	if err := h.do(del); err != nil {
		return fmt.Errorf("drop the alternative names of link index %d: %w", index, err)
	}
	return nil
}
