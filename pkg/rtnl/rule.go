// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From <linux/fib_rules.h>.
const (
	fraSrc      = 2  // FRA_SRC
	fraPriority = 6  // FRA_PRIORITY
	fraTable    = 15 // FRA_TABLE
	frToTable   = 1  // FR_ACT_TO_TBL
)

// Rule is a policy routing rule that sends packets to a table; what else a rule can look at is not told here.
type Rule struct {
	Family   int          // FamilyV4 or FamilyV6; AddRule and DelRule take Src's when there is one
	Src      netip.Prefix // invalid: any source
	Table    int          // 0 for a rule that does something else
	Priority int          // 0 in AddRule: the kernel puts it before the rules of the main table
}

// String returns what is set, much as ip-rule prints it.
func (r Rule) String() string {
	src := "all"
	if r.Src.IsValid() {
		src = r.Src.String()
	}
	return fmt.Sprintf("from %s lookup %d", src, r.Table)
}

// Rules returns the rules of a family, or of both for FamilyAll. The error wraps ErrNotSupported where the kernel has no
// policy routing (CONFIG_IP_MULTIPLE_TABLES).
func (h *Handle) Rules(family int) ([]Rule, error) {
	var all []Rule
	for _, family := range families(family) {
		part, err := h.rulesOf(family)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			err = sentinelError{ErrNotSupported, err}
		}
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		all = append(all, part...)
	}
	return all, nil
}

func (h *Handle) rulesOf(family int) ([]Rule, error) {
	var rules []Rule
	err := h.dump(func() *vnl.NetlinkRequest {
		req := h.request(unix.RTM_GETRULE, 0)
		req.AddData(&vnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}}) // struct fib_rule_hdr has the same layout
		return req
	}, unix.RTM_NEWRULE, func() { rules = rules[:0] }, func(m []byte) error {
		r, err := parseRule(m)
		if err == nil && r.Family == family {
			rules = append(rules, r)
		}
		return err
	})
	return rules, err
}

func parseRule(m []byte) (Rule, error) {
	if len(m) < unix.SizeofRtMsg {
		return Rule{}, fmt.Errorf("rule message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeRtMsg(m)
	r := Rule{Family: int(msg.Family)}
	table := int(msg.Table)
	err := walk(m[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case fraSrc:
			if a, ok := netip.AddrFromSlice(v); ok {
				r.Src = netip.PrefixFrom(a, int(msg.Src_len))
			}
		case fraPriority:
			r.Priority = int(u32(v))
		case fraTable:
			table = int(u32(v))
		}
	})
	if msg.Type == frToTable {
		r.Table = table
	}
	return r, err
}

// AddRule adds r. The error wraps ErrExist when there is an identical rule.
func (h *Handle) AddRule(r Rule) error {
	if err := h.do(h.ruleRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r)); err != nil {
		return fmt.Errorf("add rule %s: %w", r, err)
	}
	return nil
}

// DelRule removes the first rule that has all that is set of r. The error wraps ErrNotFound when there is none.
func (h *Handle) DelRule(r Rule) error {
	err := h.do(h.ruleRequest(unix.RTM_DELRULE, 0, r))
	if errors.Is(err, unix.ENOENT) {
		err = sentinelError{ErrNotFound, err}
	}
	if err != nil {
		return fmt.Errorf("delete rule %s: %w", r, err)
	}
	return nil
}

func (h *Handle) ruleRequest(msgType, flags int, r Rule) *vnl.NetlinkRequest {
	req := h.request(msgType, flags)
	msg := &vnl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(r.Family), Type: frToTable}}
	if r.Src.IsValid() {
		msg.Family, msg.Src_len = uint8(FamilyOf(r.Src.Addr())), uint8(r.Src.Bits())
	}
	req.AddData(msg)
	if r.Src.IsValid() {
		req.AddData(attr(fraSrc, r.Src.Masked().Addr().Unmap().AsSlice()))
	}
	req.AddData(attr32(fraTable, uint32(r.Table)))
	if r.Priority != 0 {
		req.AddData(attr32(fraPriority, uint32(r.Priority)))
	}
	return req
}
