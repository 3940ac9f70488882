// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Conn makes and lists qdiscs and filters in one network namespace. Who asks for something else takes its handle.
type Conn struct{ h *rtnl.Handle }

// openTC opens a connection into the calling thread's namespace.
func openTC() (*Conn, error) { return OpenIn(nil) }

// OpenIn opens a connection into ns, where it stays, whatever thread uses it.
func OpenIn(ns *netns.NS) (*Conn, error) {
	h, err := rtnl.NewIn(ns)
	if err != nil {
		return nil, fmt.Errorf("open tc socket: %w", err)
	}
	return &Conn{h}, nil
}

// Close closes the socket.
func (c *Conn) Close() { c.h.Close() }

// AddClsact makes the qdisc that carries filters; false when there is one already, clsact or ingress.
func (c *Conn) AddClsact(index int) (bool, error) {
	err := c.h.AddQdisc(index, rtnl.Clsact(), false)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, rtnl.ErrExist):
		return false, nil
	case errors.Is(err, unix.ENODEV):
		return false, fmt.Errorf("clsact on device %d: %w", index, pintree.ErrNoDevice)
	}
	return false, err
}

// ErrNoEgress is in the error of a device to which another program has given a qdisc with one side.
var ErrNoEgress = fmt.Errorf("%w: the ingress qdisc", pintree.ErrConflict)

// OnlyIngress reports that a device has a qdisc with one side, which another program has made.
func OnlyIngress(h *rtnl.Handle, index int) bool {
	q, err := h.IngressQdisc(index)
	return err == nil && q.Kind != rtnl.QdiscClsact
}

// noEgress is the error of such a device.
func (c *Conn) noEgress(index int) error {
	name := strconv.Itoa(index)
	if l, err := c.h.LinkByIndex(index); err == nil {
		name = l.Name
	}
	return fmt.Errorf("%w of %s has no egress side and leaves no room for clsact, which has both", ErrNoEgress, name)
}

// DeleteClsact removes the qdisc with whatever hangs on it; missing is success.
func (c *Conn) DeleteClsact(index int) error { return c.h.DelQdisc(index, rtnl.Clsact()) }

// putFilter makes prog our filter at h; one of ours that is there is replaced without a gap. class is what the program reads as
// skb->tc_classid, 0 for none.
func (c *Conn) putFilter(index int, h hook.Hook, prog *bpfsys.Program, class uint32) error {
	f := h.Filter()
	f.FD, f.ClassID = prog.FD(), class
	return c.h.PutBPF(index, f)
}

// Filter is what is at our priority and protocol on a hook.
type Filter struct {
	program string // of ours; empty: another owner's
	id      uint32 // of the program
	kind    string
	Class   uint32 // see putFilter
}

// Is reports whether the filter is the one that belongs to h.
func (f Filter) Is(h hook.Hook) bool { return f.program == h.Program }

// yields reports whether the filter may be replaced by h's: it is ours and of the same direction. (An "ingress" qdisc has one
// list, which it shows for both.)
func (f Filter) yields(h hook.Hook) bool {
	return slices.ContainsFunc(hook.All(), func(o hook.Hook) bool {
		return o.Program == f.program && o.Egress == h.Egress && o.Rank == h.Rank
	})
}

// FilterAt looks at our place on h; false when it is empty. The kernel filters by priority and protocol, so that no message
// of anybody else's filter is parsed.
func (c *Conn) FilterAt(index int, h hook.Hook) (Filter, bool, error) {
	place := h.Filter()
	list, err := NoneIfGone(c.h.FiltersAt(index, place.Parent, place.Priority, place.Protocol))
	if err != nil || len(list) == 0 {
		return Filter{}, false, err
	}
	for _, f := range list {
		if !hook.IsOurs(f) {
			return Filter{kind: f.Kind}, true, nil
		}
	}
	last := list[len(list)-1]
	return Filter{program: last.Program, id: last.ProgramID, kind: last.Kind, Class: last.ClassID}, true, nil
}

// NoneIfGone takes a device that has gone for one without filters.
func NoneIfGone(filters []rtnl.FilterStatus, err error) ([]rtnl.FilterStatus, error) {
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil, nil
	}
	return filters, err
}

// deleteFilter removes our filter for h and reports whether there was one. What is not ours stays.
func (c *Conn) deleteFilter(index int, h hook.Hook) (bool, error) {
	f, found, err := c.FilterAt(index, h)
	if err != nil || !found || !f.Is(h) {
		return false, err
	}
	if err := c.h.DelBPF(index, h.Filter()); err != nil {
		return false, err
	}
	return true, nil
}

// deleteFilters is deleteFilter for each of hooks. It goes on after errors.
func (c *Conn) deleteFilters(index int, hooks []hook.Hook) error {
	var errs []error
	for _, h := range hooks {
		_, err := c.deleteFilter(index, h)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// only reports whether nothing hangs on the qdisc but our filters for these hooks: the programs of a pod's device, of an uplink and
// of limits share one.
func (c *Conn) only(index int, hooks []hook.Hook) bool {
	return c.all(index, func(f rtnl.FilterStatus) bool {
		return hook.IsOurs(f) && slices.ContainsFunc(hooks, func(h hook.Hook) bool { return h.Program == f.Program })
	})
}

// Unused reports whether no filter at all hangs on the qdisc.
func (c *Conn) Unused(index int) bool {
	return c.all(index, func(rtnl.FilterStatus) bool { return false })
}

// hasOurs reports whether a filter of ours hangs on the qdisc, or whether that cannot be known.
func (c *Conn) hasOurs(index int) bool {
	return !c.all(index, func(f rtnl.FilterStatus) bool { return !hook.IsOurs(f) })
}

// all reports whether ok holds for every filter of both directions. What cannot be read counts as another owner's.
func (c *Conn) all(index int, ok func(rtnl.FilterStatus) bool) bool {
	for _, parent := range []uint32{rtnl.HookIngress, rtnl.HookEgress} {
		list, err := NoneIfGone(c.h.Filters(index, parent))
		if err != nil || slices.ContainsFunc(list, func(f rtnl.FilterStatus) bool { return !ok(f) }) {
			return false
		}
	}
	return true
}
