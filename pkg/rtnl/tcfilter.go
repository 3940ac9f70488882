// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	tc "github.com/florianl/go-tc"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Class is a class of an HTB qdisc.
type Class struct {
	Handle  uint32
	Parent  uint32
	Rate    uint64 // bytes a second
	Ceil    uint64
	Buffer  uint32 // burst at Rate in ticks of 64 ns
	Cbuffer uint32 // burst at Ceil
	Stats   QdiscStats
}

// htbQuantum is what a class may send before the next one's turn. The kernel would derive one from the rate and complain in
// its log where that is too small or too big. None of our classes competes with another.
const htbQuantum = 60000

// AddClass makes a class of an HTB qdisc.
func (h *Handle) AddClass(index int, class Class) error {
	htb := tc.Htb{
		Parms: &tc.HtbOpt{
			Rate: tc.RateSpec{Rate: rate32(class.Rate)}, Ceil: tc.RateSpec{Rate: rate32(class.Ceil)},
			Buffer: class.Buffer, Cbuffer: class.Cbuffer, Quantum: htbQuantum,
		},
		Rate64: &class.Rate, Ceil64: &class.Ceil,
	}
	err := h.changeTC(func(c *tc.Tc) error {
		return c.Class().Add(&tc.Object{
			Msg:       tc.Msg{Ifindex: uint32(index), Handle: class.Handle, Parent: class.Parent},
			Attribute: tc.Attribute{Kind: QdiscHTB, Htb: &htb},
		})
	})
	if err != nil {
		return fmt.Errorf("add class %x to link index %d: %w", class.Handle, index, err)
	}
	return nil
}

// Classes returns the HTB classes of a device.
func (h *Handle) Classes(index int) ([]Class, error) {
	var classes []Class
	err := h.dump(func() *vnl.NetlinkRequest {
		return h.tcRequest(unix.RTM_GETTCLASS, 0, vnl.TcMsg{Ifindex: int32(index)})
	}, unix.RTM_NEWTCLASS, func() { classes = nil }, func(m []byte) error {
		if len(m) < vnl.SizeofTcMsg {
			return fmt.Errorf("class message of %d bytes: %w", len(m), unix.EINVAL)
		}
		c, kind, err := parseClass(m)
		if err == nil && kind == QdiscHTB {
			classes = append(classes, c)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list classes of link index %d: %w", index, err)
	}
	return classes, nil
}

func parseClass(m []byte) (c Class, kind string, err error) {
	if len(m) < vnl.SizeofTcMsg {
		return c, "", fmt.Errorf("class message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeTcMsg(m)
	c = Class{Handle: msg.Handle, Parent: msg.Parent}
	var options, stats []byte
	err = walk(m[vnl.SizeofTcMsg:], func(k uint16, v []byte) {
		switch k {
		case vnl.TCA_KIND:
			kind = cstring(v)
		case vnl.TCA_OPTIONS:
			options = v
		case vnl.TCA_STATS2:
			stats = v
		}
	})
	if err != nil || kind != QdiscHTB {
		return c, kind, err
	}
	err = walk(options, func(k uint16, v []byte) {
		switch {
		case k == vnl.TCA_HTB_PARMS && len(v) >= vnl.SizeofTcHtbCopt:
			opt := vnl.DeserializeTcHtbCopt(v)
			c.Rate, c.Ceil = max(c.Rate, uint64(opt.Rate.Rate)), max(c.Ceil, uint64(opt.Ceil.Rate))
			c.Buffer, c.Cbuffer = opt.Buffer, opt.Cbuffer
		case k == vnl.TCA_HTB_RATE64:
			c.Rate = u64(v)
		case k == vnl.TCA_HTB_CEIL64:
			c.Ceil = u64(v)
		}
	})
	if err != nil {
		return c, kind, err
	}
	c.Stats, err = parseTCStats(stats)
	return c, kind, err
}

// End says which address of a packet a filter looks at.
type End int

// The ends.
const (
	Destination End = iota
	Source
)

// Filter is a filter of kind u32. Exactly one of RedirectTo and ClassID is set.
type Filter struct {
	Parent   uint32 // HookIngress, HookEgress, or the handle of a qdisc
	Priority uint16

	Prefix netip.Prefix // of the packet's End; the zero value matches every packet of every protocol
	End    End

	RedirectTo int    // index of the device whose egress gets the packet
	ClassID    uint32 // class that the packet goes to
}

// FilterStatus is a filter of any kind, as far as this package understands it.
type FilterStatus struct {
	Kind       string
	Parent     uint32
	Priority   uint16
	Protocol   uint16 // host byte order
	Handle     uint32
	RedirectTo int    // of a u32 filter with a mirred action
	ClassID    uint32 // of a u32 or bpf filter
	Program    string // of a bpf filter, as its owner named it
	ProgramID  uint32 // of a bpf filter
}

func (f Filter) protocol() uint16 {
	switch {
	case !f.Prefix.IsValid():
		return unix.ETH_P_ALL
	case f.Prefix.Addr().Is4():
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

// tcInfo is tcm_info of a filter: priority and, in network byte order, protocol.
func tcInfo(priority, protocol uint16) uint32 {
	return uint32(priority)<<16 | uint32(protocol<<8|protocol>>8)
}

// AddFilter makes a filter behind those of the same priority.
func (h *Handle) AddFilter(index int, f Filter) error {
	keys := f.keys()
	u32 := tc.U32{Sel: &tc.U32Sel{Flags: vnl.TC_U32_TERMINAL, NKeys: uint8(len(keys)), Keys: keys}}
	if f.ClassID != 0 {
		u32.ClassID = &f.ClassID
	}
	if f.RedirectTo != 0 {
		u32.Actions = &[]*tc.Action{{Kind: kindMirred, Mirred: &tc.Mirred{Parms: &tc.MirredParam{
			Action: tc.ActStolen, Eaction: egressRedirect, IfIndex: uint32(f.RedirectTo),
		}}}}
	}
	err := h.changeTC(func(c *tc.Tc) error {
		return c.Filter().Add(&tc.Object{
			Msg:       tc.Msg{Ifindex: uint32(index), Parent: f.Parent, Info: tcInfo(f.Priority, f.protocol())},
			Attribute: tc.Attribute{Kind: kindU32, U32: &u32},
		})
	})
	if err != nil {
		return fmt.Errorf("add filter to link index %d: %w", index, err)
	}
	return nil
}

const (
	kindU32    = "u32"
	kindMirred = "mirred"

	egressRedirect = 1 // TCA_EGRESS_REDIR of <linux/tc_act/tc_mirred.h>

	// struct tc_mirred of <linux/tc_act/tc_mirred.h>: index, capab, action, refcnt, bindcnt, eaction, ifindex.
	mirredSize    = 28
	mirredIfindex = 24
)

// Offsets of the addresses in the IP headers.
const (
	srcOff4, dstOff4 = 12, 16
	srcOff6, dstOff6 = 8, 24
)

// keys compares 32-bit words of the packet from its network header on.
func (f Filter) keys() []tc.U32Key {
	if !f.Prefix.IsValid() {
		return []tc.U32Key{{}}
	}
	addr, off := f.Prefix.Masked().Addr(), map[End][2]uint32{Source: {srcOff4, srcOff6}, Destination: {dstOff4, dstOff6}}[f.End]
	at := off[1]
	if addr.Is4() {
		at = off[0]
	}
	b := addr.AsSlice()
	var keys []tc.U32Key
	for i, bits := 0, f.Prefix.Bits(); i < len(b); i, bits = i+4, bits-32 {
		n := min(max(bits, 0), 32)
		if n == 0 && i > 0 {
			break
		}
		mask := uint32(uint64(0xffffffff) << (32 - n))
		keys = append(keys, tc.U32Key{
			Mask: networkOrder(mask), Val: networkOrder(binary.BigEndian.Uint32(b[i:])), Off: at + uint32(i),
		})
	}
	return keys
}

func networkOrder(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return vnl.NativeEndian().Uint32(b[:])
}

// DelFilters removes every filter of one priority and protocol (ETH_P_*, host byte order) of a hook or qdisc. Missing is success.
func (h *Handle) DelFilters(index int, parent uint32, priority, protocol uint16) error {
	err := h.do(h.tcRequest(unix.RTM_DELTFILTER, 0, vnl.TcMsg{Ifindex: int32(index), Parent: parent, Info: tcInfo(priority, protocol)}))
	if err == nil || TCGone(err) {
		return nil
	}
	return fmt.Errorf("delete filter of link index %d: %w", index, err)
}

// Filters returns the filters of a hook or qdisc; none where there is no such hook.
func (h *Handle) Filters(index int, parent uint32) ([]FilterStatus, error) {
	return h.filters(index, parent, 0)
}

// FiltersAt returns those of one priority and protocol (ETH_P_*, host byte order); the kernel leaves the others out.
func (h *Handle) FiltersAt(index int, parent uint32, priority, protocol uint16) ([]FilterStatus, error) {
	return h.filters(index, parent, tcInfo(priority, protocol))
}

func (h *Handle) filters(index int, parent, info uint32) ([]FilterStatus, error) {
	var filters []FilterStatus
	err := h.dump(func() *vnl.NetlinkRequest {
		return h.tcRequest(unix.RTM_GETTFILTER, 0, vnl.TcMsg{Ifindex: int32(index), Parent: parent, Info: info})
	}, unix.RTM_NEWTFILTER, func() { filters = nil }, func(m []byte) error {
		f, isFilter, err := parseFilter(m)
		if err == nil && isFilter {
			filters = append(filters, f)
		}
		return err
	})
	if err != nil && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)) {
		return nil, nil // no qdisc there
	}
	if err != nil {
		return nil, fmt.Errorf("list filters of link index %d: %w", index, err)
	}
	return filters, nil
}

// parseFilter reads a message of a dump; false for the head of a list of filters and for a hash table of u32, which are not
// filters.
func parseFilter(m []byte) (FilterStatus, bool, error) {
	if len(m) < vnl.SizeofTcMsg {
		return FilterStatus{}, false, fmt.Errorf("filter message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeTcMsg(m)
	proto := uint16(msg.Info)
	f := FilterStatus{Parent: msg.Parent, Priority: uint16(msg.Info >> 16), Protocol: proto<<8 | proto>>8, Handle: msg.Handle}
	var options []byte
	err := walk(m[vnl.SizeofTcMsg:], func(kind uint16, v []byte) {
		switch kind {
		case vnl.TCA_KIND:
			f.Kind = cstring(v)
		case vnl.TCA_OPTIONS:
			options = v
		}
	})
	if err != nil || msg.Handle == 0 {
		return f, false, err
	}
	switch {
	case f.Kind == kindBPF:
		return f, true, f.readBPF(options)
	case f.Kind != kindU32:
		return f, true, nil
	case msg.Handle&0xfff == 0: // TC_U32_NODE: a table
		return f, false, nil
	}
	return f, true, f.readU32(options)
}

func (f *FilterStatus) readBPF(options []byte) error {
	return walk(options, func(kind uint16, v []byte) {
		switch kind {
		case vnl.TCA_BPF_NAME:
			f.Program = cstring(v)
		case vnl.TCA_BPF_ID:
			f.ProgramID = u32(v)
		case vnl.TCA_BPF_CLASSID:
			f.ClassID = u32(v)
		}
	})
}

// readU32 takes what tells where packets go. What else there is depends on the kernel's configuration.
func (f *FilterStatus) readU32(options []byte) error {
	var action []byte
	err := walk(options, func(kind uint16, v []byte) {
		switch kind {
		case vnl.TCA_U32_CLASSID:
			f.ClassID = u32(v)
		case vnl.TCA_U32_ACT:
			action = v
		}
	})
	if err == nil {
		f.RedirectTo, err = parseRedirect(action)
	}
	return err
}

// parseRedirect returns the device that the first of a filter's actions redirects to, 0 when it does something else.
func parseRedirect(actions []byte) (to int, err error) {
	var first, options, parms []byte
	err = walk(actions, func(kind uint16, v []byte) {
		if kind == vnl.TCA_ACT_TAB {
			first = v
		}
	})
	mirred := false
	err = errors.Join(err, walk(first, func(kind uint16, v []byte) {
		switch kind {
		case vnl.TCA_ACT_KIND:
			mirred = cstring(v) == kindMirred
		case vnl.TCA_ACT_OPTIONS:
			options = v
		}
	}))
	if err != nil || !mirred {
		return 0, err
	}
	err = walk(options, func(kind uint16, v []byte) {
		if kind == vnl.TCA_MIRRED_PARMS {
			parms = v
		}
	})
	if len(parms) >= mirredSize {
		to = int(u32(parms[mirredIfindex:]))
	}
	return to, err
}

// AddIFB makes an intermediate functional block device, administratively up, whose egress is where packets redirected to it
// queue. A txqlen of 0 is what the upstream plugins set. The error wraps ErrExist when the name is taken.
func (h *Handle) AddIFB(name string, mtu, txqlen int) error {
	req := h.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	for _, a := range endAttrs(name, nil, mtu) {
		req.AddData(a)
	}
	req.AddData(attr32(unix.IFLA_TXQLEN, uint32(txqlen)))
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(KindIFB))
	req.AddData(info)
	if err := h.do(req); err != nil {
		return fmt.Errorf("add ifb %q: %w", name, err)
	}
	return nil
}
