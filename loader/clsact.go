// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/nl"
)

// Our place among the filters of a hook. Filters run in the order of priority: ours come after those that an administrator
// gave a small number and before those the kernel numbered itself (from 49152). Handle and priority are "SL" in ASCII.
const (
	filterPriority = 0x534c
	filterHandle   = 0x534c
	filterRanks    = 8 // priorities from filterPriority on that are ours
)

// tcConn is one rtnetlink socket for qdiscs and filters of the calling thread's namespace.
type tcConn struct{ h *nl.Handle }

func openTC() (*tcConn, error) {
	h, err := nl.New()
	if err != nil {
		return nil, fmt.Errorf("open tc socket: %w", err)
	}
	return &tcConn{h}, nil
}

func (c *tcConn) Close() { c.h.Close() }

func clsact() nl.Qdisc { return nl.Qdisc{Kind: nl.QdiscClsact, Parent: nl.ParentIngress} }

// addClsact makes the qdisc that carries filters; false when there is one already, clsact or ingress.
func (c *tcConn) addClsact(index int) (bool, error) {
	err := c.h.AddQdisc(index, clsact(), false)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case errors.Is(err, unix.ENODEV):
		return false, fmt.Errorf("clsact on device %d: %w", index, ErrNoDevice)
	}
	return false, fmt.Errorf("clsact on device %d: %w", index, err)
}

// deleteClsact removes the qdisc with whatever hangs on it; missing is success.
func (c *tcConn) deleteClsact(index int) error { return c.h.DelQdisc(index, clsact()) }

func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

func (h hook) tcParent() uint32 {
	if h.egress {
		return nl.HookEgress
	}
	return nl.HookIngress
}

func bpfFilter(h hook) nl.BPFFilter {
	return nl.BPFFilter{Parent: h.tcParent(), Priority: h.priority(), Handle: filterHandle, Name: h.program}
}

// putFilter makes prog our filter at h; one of ours that is there is replaced without a gap. class is what the program reads as
// skb->tc_classid, 0 for none.
func (c *tcConn) putFilter(index int, h hook, prog *ebpf.Program, class uint32) error {
	f := bpfFilter(h)
	f.FD, f.ClassID = prog.FD(), class
	if err := c.h.PutBPF(index, f); err != nil {
		return fmt.Errorf("filter %s on device %d: %w", h.program, index, err)
	}
	return nil
}

// filter is what is at our priority and protocol on a hook.
type filter struct {
	program string // of ours; empty: somebody else's
	id      uint32 // of the program
	kind    string
	class   uint32 // see putFilter
}

// is reports whether the filter is the one that belongs to h.
func (f filter) is(h hook) bool { return f.program == h.program }

// yields reports whether the filter may be replaced by h's: it is ours and of the same direction. (An "ingress" qdisc has one
// list, which it shows for both.)
func (f filter) yields(h hook) bool {
	for _, o := range allHooks() {
		if o.program == f.program {
			return o.egress == h.egress && o.rank == h.rank
		}
	}
	return false
}

// filterAt looks at our place on h; false when it is empty. The kernel filters by priority and protocol, so that no message
// of anybody else's filter is parsed.
func (c *tcConn) filterAt(index int, h hook) (filter, bool, error) {
	filters, err := c.h.FiltersAt(index, h.tcParent(), h.priority(), unix.ETH_P_ALL)
	if err != nil {
		if gone(err) {
			return filter{}, false, nil
		}
		return filter{}, false, err
	}
	var f filter
	for _, o := range filters {
		if !isOurs(o) {
			return filter{kind: o.Kind}, true, nil
		}
		f = filter{program: o.Program, id: o.ProgramID, kind: o.Kind, class: o.ClassID}
	}
	return f, len(filters) > 0, nil
}

// deleteFilter removes our filter for h and reports whether there was one. What is not ours stays.
func (c *tcConn) deleteFilter(index int, h hook) (bool, error) {
	f, found, err := c.filterAt(index, h)
	if err != nil || !found || !f.is(h) {
		return false, err
	}
	if err := c.h.DelBPF(index, bpfFilter(h)); err != nil {
		return false, fmt.Errorf("delete filter %s of device %d: %w", h.program, index, err)
	}
	return true, nil
}

// only reports whether nothing hangs on the qdisc but our filters for these hooks: the programs of a pod's device, of an uplink and
// of limits share one.
func (c *tcConn) only(index int, hooks []hook) bool {
	for _, h := range []hook{hookPodEgress(), hookPodIngress()} { // one for each direction
		filters, err := c.h.Filters(index, h.tcParent())
		if err != nil && !gone(err) { // what cannot be read is somebody's
			return false
		}
		for _, o := range filters {
			if !isOurs(o) || !slices.ContainsFunc(hooks, func(h hook) bool { return o.Program == h.program }) {
				return false
			}
		}
	}
	return true
}

// unused reports whether no filter at all hangs on the qdisc.
func (c *tcConn) unused(index int) bool {
	for _, h := range []hook{hookPodEgress(), hookPodIngress()} { // one for each direction
		some, err := c.h.HasFilters(index, h.tcParent())
		if err != nil && !gone(err) || some {
			return false
		}
	}
	return true
}

// isOurs recognises a filter by place, kind and name.
func isOurs(o nl.FilterStatus) bool {
	return o.Kind == "bpf" && o.Handle == filterHandle && o.Priority-filterPriority < filterRanks && strings.HasPrefix(o.Program, programPrefix)
}
