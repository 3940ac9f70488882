// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	tc "github.com/florianl/go-tc"
	"github.com/florianl/go-tc/core"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/wire"
)

// Our place among the filters of a hook. Filters run in the order of priority: ours come after those that an administrator
// gave a small number and before those the kernel numbered itself (from 49152). Handle and priority are "SL" in ASCII.
const (
	filterPriority = 0x534c
	filterHandle   = 0x534c
	filterRanks    = 8 // priorities from filterPriority on that are ours
	clsactHandle   = 0xffff0000
)

// tcConn is one rtnetlink socket for qdiscs and filters of the calling thread's namespace.
type tcConn struct{ t *tc.Tc }

func openTC() (*tcConn, error) {
	t, err := tc.Open(&tc.Config{})
	if err != nil {
		return nil, fmt.Errorf("open tc socket: %w", err)
	}
	return &tcConn{t}, nil
}

func (c *tcConn) Close() error { return c.t.Close() }

func clsactObject(index int) *tc.Object {
	return &tc.Object{
		Msg:       tc.Msg{Family: unix.AF_UNSPEC, Ifindex: uint32(index), Handle: clsactHandle, Parent: tc.HandleIngress},
		Attribute: tc.Attribute{Kind: "clsact"},
	}
}

// addClsact makes the qdisc that carries filters; false when there is one already, clsact or ingress.
func (c *tcConn) addClsact(index int) (bool, error) {
	err := c.t.Qdisc().Add(clsactObject(index))
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
func (c *tcConn) deleteClsact(index int) error {
	err := c.t.Qdisc().Delete(clsactObject(index))
	if err == nil || gone(err) {
		return nil
	}
	return fmt.Errorf("delete clsact of device %d: %w", index, err)
}

func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}

func (h hook) tcParent() uint32 {
	if h.egress {
		return core.BuildHandle(tc.HandleRoot>>16, tc.HandleMinEgress)
	}
	return core.BuildHandle(tc.HandleRoot>>16, tc.HandleMinIngress)
}

func filterMsg(index int, h hook) tc.Msg {
	return tc.Msg{
		Family: unix.AF_UNSPEC, Ifindex: uint32(index), Handle: filterHandle, Parent: h.tcParent(),
		Info: core.BuildHandle(h.priority(), uint32(wire.Port(unix.ETH_P_ALL))),
	}
}

// putFilter makes prog our filter at h; one of ours that is there is replaced without a gap. class is what the program reads as
// skb->tc_classid, 0 for none.
func (c *tcConn) putFilter(index int, h hook, prog *ebpf.Program, class uint32) error {
	fd, flags, name := uint32(prog.FD()), uint32(tc.BpfActDirect), h.program
	attr := &tc.Bpf{FD: &fd, Name: &name, Flags: &flags}
	if class != 0 {
		attr.ClassID = &class
	}
	err := c.t.Filter().Replace(&tc.Object{Msg: filterMsg(index, h), Attribute: tc.Attribute{Kind: "bpf", BPF: attr}})
	if err != nil {
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
	m := filterMsg(index, h)
	m.Handle = 0
	objects, err := c.t.Filter().Get(&m)
	if err != nil {
		if gone(err) {
			return filter{}, false, nil
		}
		return filter{}, false, fmt.Errorf("list filters of device %d: %w", index, err)
	}
	found := false
	var f filter
	for _, o := range objects {
		if o.Handle == 0 { // the head of the list, not a filter
			continue
		}
		found = true
		if !isOurs(&o) {
			return filter{kind: o.Kind}, true, nil
		}
		f = filter{program: *o.BPF.Name, kind: o.Kind}
		if o.BPF.ID != nil {
			f.id = *o.BPF.ID
		}
		if o.BPF.ClassID != nil {
			f.class = *o.BPF.ClassID
		}
	}
	return f, found, nil
}

// deleteFilter removes our filter for h and reports whether there was one. What is not ours stays.
func (c *tcConn) deleteFilter(index int, h hook) (bool, error) {
	f, found, err := c.filterAt(index, h)
	if err != nil || !found || !f.is(h) {
		return false, err
	}
	err = c.t.Filter().Delete(&tc.Object{Msg: filterMsg(index, h), Attribute: tc.Attribute{Kind: "bpf"}})
	if err != nil && !gone(err) {
		return false, fmt.Errorf("delete filter %s of device %d: %w", h.program, index, err)
	}
	return true, nil
}

// only reports whether nothing hangs on the qdisc but our filters for these hooks: the programs of a pod's device, of an uplink and
// of limits share one.
func (c *tcConn) only(index int, hooks []hook) bool {
	for _, h := range []hook{hookPodEgress(), hookPodIngress()} { // one for each direction
		objects, err := c.t.Filter().Get(&tc.Msg{Family: unix.AF_UNSPEC, Ifindex: uint32(index), Parent: h.tcParent()})
		if err != nil && !gone(err) { // what cannot be read is somebody's
			return false
		}
		for _, o := range objects {
			named := func(h hook) bool { return o.BPF != nil && o.BPF.Name != nil && *o.BPF.Name == h.program }
			if o.Handle != 0 && (!isOurs(&o) || !slices.ContainsFunc(hooks, named)) {
				return false
			}
		}
	}
	return true
}

// unused reports whether no filter at all hangs on the qdisc.
func (c *tcConn) unused(index int) bool {
	for _, h := range []hook{hookPodEgress(), hookPodIngress()} { // one for each direction
		objects, err := c.t.Filter().Get(&tc.Msg{Family: unix.AF_UNSPEC, Ifindex: uint32(index), Parent: h.tcParent()})
		if err != nil && !gone(err) || len(objects) > 0 {
			return false
		}
	}
	return true
}

// isOurs recognises a filter by place, kind and name.
func isOurs(o *tc.Object) bool {
	return o.Kind == "bpf" && o.Handle == filterHandle && o.Info>>16-filterPriority < filterRanks &&
		o.BPF != nil && o.BPF.Name != nil && strings.HasPrefix(*o.BPF.Name, programPrefix)
}
