// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kindBPF is what the kernel calls filters that are BPF programs.
const kindBPF = "bpf"

// BPFFilter is a filter of kind bpf whose program decides itself what becomes of a packet (direct action,
// net/sched/cls_bpf.c).
type BPFFilter struct {
	Parent   uint32 // HookIngress or HookEgress
	Priority uint16
	Protocol uint16 // ETH_P_*, host byte order
	Handle   uint32
	FD       int    // of the program; the kernel keeps a reference of its own
	Name     string // what listings show
	ClassID  uint32 // what the program reads as skb->tc_classid; 0 for none
}

func (f BPFFilter) msg(index int) vnl.TcMsg {
	return vnl.TcMsg{Ifindex: int32(index), Handle: f.Handle, Parent: f.Parent, Info: tcInfo(f.Priority, f.Protocol)}
}

// PutBPF makes a filter, in place of the one with the same priority, protocol and handle if there is one: no packet passes
// between the two. The error wraps unix.EINVAL when there is no such hook, and unix.ENOENT when the kernel has no cls_bpf.
// The message is ours, not go-tc's: it is part of the ADD of each pod (docs/dev/adr/0021-go-tc.md).
func (h *Handle) PutBPF(index int, f BPFFilter) error {
	req := h.tcRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, f.msg(index))
	req.AddData(attrString(vnl.TCA_KIND, kindBPF))
	options := attr(vnl.TCA_OPTIONS, nil)
	if f.ClassID != 0 {
		options.AddRtAttr(vnl.TCA_BPF_CLASSID, vnl.Uint32Attr(f.ClassID))
	}
	options.AddRtAttr(vnl.TCA_BPF_FD, vnl.Uint32Attr(uint32(f.FD)))
	options.AddRtAttr(vnl.TCA_BPF_NAME, vnl.ZeroTerminated(f.Name))
	options.AddRtAttr(vnl.TCA_BPF_FLAGS, vnl.Uint32Attr(vnl.TCA_BPF_FLAG_ACT_DIRECT))
	req.AddData(options)
	if err := h.do(req); err != nil {
		return fmt.Errorf("put filter %s on link index %d: %w", f.Name, index, err)
	}
	return nil
}

// DelBPF removes the filter with f's priority, protocol and handle. Missing is success, and so is a device that is gone.
func (h *Handle) DelBPF(index int, f BPFFilter) error {
	req := h.tcRequest(unix.RTM_DELTFILTER, 0, f.msg(index))
	req.AddData(attrString(vnl.TCA_KIND, kindBPF))
	err := h.do(req)
	if err == nil || TCGone(err) {
		return nil
	}
	return fmt.Errorf("delete filter %s of link index %d: %w", f.Name, index, err)
}
