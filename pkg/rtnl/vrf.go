// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"

	vnl "github.com/vishvananda/netlink/nl"
)

// vrfTable is IFLA_VRF_TABLE of <linux/if_link.h>.
const vrfTable = 1

// AddVRF makes a VRF device, up, whose ports use the routing table. The error wraps ErrExist when the name is taken, by
// whatever kind of link, and ErrNotSupported where the kernel has no VRFs (CONFIG_NET_VRF).
func (h *Handle) AddVRF(name string, table uint32) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	req.AddData(attrString(unix.IFLA_IFNAME, name))
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("vrf"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(vrfTable, vnl.Uint32Attr(table))
	req.AddData(info)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add vrf %q with table %d: %w", name, table, err)
	}
	return nil
}
