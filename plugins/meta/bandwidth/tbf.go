// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// What upstream's plugins use, so that either suite's tools know the other's
// qdiscs.
const (
	latency      = 0.025 // seconds a packet may wait in the queue
	classShaped  = 48    // minor of the class with the rate; tc writes 1:30
	classFree    = 1     // minor of the class without
	freeRate     = 100_000_000_000
	prioV4       = 16
	prioV6       = 15
	ifbQueue     = 0
	ifbQueueTree = 1000
)

// ifbMTU is less than IPv6 needs (RFC 8200 5), so the kernel gives the device no IPv6: no address, no routes, no check for another owner
// of the address. It would walk the routes of all such devices whenever one comes up or goes. Nothing cuts packets to this size: they
// are led to the device and back. Upstream has the MTU of the pod's device, whatever it is.
const ifbMTU = 1279

// leastQueue holds three packets of segmentation offload, which this tree does not
// cut up as a token bucket does.
const leastQueue = 192 << 10

// redirectPriority is behind the programs of the datapath, which must see what
// the pod sends before the intermediate device has it: packets that come back
// from there are not classified again.
const redirectPriority = 0x5400

func rootHandle() uint32 { return rtnl.TC(1, 0) }

// tbf returns the token bucket for l, with upstream's rounding.
func (l *Limit) tbf() *rtnl.TBF {
	limit := float64(l.Rate)*latency + float64(l.Burst)
	return &rtnl.TBF{Rate: l.Rate, Limit: uint32(min(limit, math.MaxUint32)), Buffer: rtnl.BurstTicks(l.Rate, l.Burst)}
}

// wrapped is what upstream's plugin makes of a burst that is too long for the
// kernel's numbers: what is left of them in 32 bits.
func (l *Limit) wrapped() *rtnl.TBF {
	us := uint32(uint64(float64(l.Burst) * 1e6 / float64(l.Rate)))
	const ticksPerUS = 15.625
	return &rtnl.TBF{
		Rate: l.Rate, Limit: uint32(uint64(float64(l.Rate)*latency)) + l.Burst, Buffer: uint32(uint64(float64(us) * ticksPerUS)),
	}
}

// putTBF limits what leaves the device: by a token bucket, or by a tree with a
// class for what is not limited. end is the address of the other side.
func putTBF(s side, l *Limit, nets subnets, end rtnl.End, rb *rollback.Stack) error {
	root := rtnl.Qdisc{Kind: rtnl.QdiscTBF, Handle: rootHandle(), Parent: rtnl.ParentRoot, TBF: l.tbf()}
	if !nets.none() {
		root = rtnl.Qdisc{Kind: rtnl.QdiscHTB, Handle: rootHandle(), Parent: rtnl.ParentRoot, HTB: &rtnl.HTB{Default: defaultClass(nets)}}
	}
	if err := s.h.AddQdisc(s.index, root, false); err != nil {
		return err
	}
	rb.Push("qdisc", func(context.Context) error { return s.h.DelQdisc(s.index, root) })
	if nets.none() {
		return nil
	}
	for _, c := range classes(l) {
		if err := s.h.AddClass(s.index, c); err != nil {
			return err
		}
	}
	// The class's own queue would hold a thousand packets, of up to 64 kB each.
	queue := rtnl.Qdisc{
		Kind: rtnl.QdiscBFIFO, Handle: rtnl.TC(classShaped, 0), Parent: rtnl.TC(1, classShaped),
		BFIFO: &rtnl.BFIFO{Limit: max(l.tbf().Limit, leastQueue)},
	}
	if err := s.h.AddQdisc(s.index, queue, false); err != nil {
		return err
	}
	for _, f := range filters(nets, end) {
		if err := s.h.AddFilter(s.index, f); err != nil {
			return err
		}
	}
	return nil
}

func defaultClass(nets subnets) uint32 {
	if len(nets.Shaped) > 0 {
		return classFree
	}
	return classShaped
}

func classes(l *Limit) []rtnl.Class {
	return []rtnl.Class{
		{
			Handle: rtnl.TC(1, classShaped), Parent: rootHandle(), Rate: l.Rate, Ceil: 2 * l.Rate,
			Buffer: rtnl.BurstTicks(l.Rate, l.Burst), Cbuffer: rtnl.BurstTicks(2*l.Rate, l.Burst),
		},
		{
			Handle: rtnl.TC(1, classFree), Parent: rootHandle(), Rate: freeRate, Ceil: freeRate,
			Buffer: rtnl.BurstTicks(freeRate, math.MaxUint32), Cbuffer: rtnl.BurstTicks(freeRate, math.MaxUint32),
		},
	}
}

// filters send the listed networks to the class that is not the default.
func filters(nets subnets, end rtnl.End) []rtnl.Filter {
	list, class := nets.Unshaped, rtnl.TC(1, classFree)
	if len(nets.Shaped) > 0 {
		list, class = nets.Shaped, rtnl.TC(1, classShaped)
	}
	var out []rtnl.Filter
	for _, p := range list {
		out = append(out, rtnl.Filter{Parent: rootHandle(), Priority: familyPriority(p), Prefix: p, End: end, ClassID: class})
	}
	return out
}

func familyPriority(p netip.Prefix) uint16 {
	if p.Addr().Is4() {
		return prioV4
	}
	return prioV6
}

// checkTBF compares what is there with what putTBF makes. The error says what
// differs.
func checkTBF(s side, l *Limit, nets subnets, end rtnl.End) error {
	q, err := s.h.RootQdisc(s.index)
	if err != nil {
		return err
	}
	if nets.none() {
		if want := l.tbf(); q.Kind != rtnl.QdiscTBF || *q.TBF != *want && *q.TBF != *l.wrapped() {
			return fmt.Errorf("the root qdisc is %s %+v, want tbf %+v", q.Kind, q.TBF, want)
		}
		return nil
	}
	if q.Kind != rtnl.QdiscHTB || q.HTB.Default != defaultClass(nets) {
		return fmt.Errorf("the root qdisc is %s %+v, want htb with default class %d", q.Kind, q.HTB, defaultClass(nets))
	}
	return errors.Join(checkClasses(s, l), checkFilters(s, nets, end))
}

func checkClasses(s side, l *Limit) error {
	got, err := s.h.Classes(s.index)
	if err != nil {
		return err
	}
	byHandle := make(map[uint32]rtnl.Class, len(got))
	for _, c := range got {
		byHandle[c.Handle] = c
	}
	for _, want := range classes(l) {
		c, ok := byHandle[want.Handle]
		if !ok || c.Rate != want.Rate || c.Ceil != want.Ceil || c.Buffer != want.Buffer {
			return fmt.Errorf("class %x is %+v, want %+v", want.Handle, c, want)
		}
	}
	return nil
}

func checkFilters(s side, nets subnets, end rtnl.End) error {
	got, err := s.h.Filters(s.index, rootHandle())
	if err != nil {
		return err
	}
	want := filters(nets, end)
	if len(got) != len(want) {
		return fmt.Errorf("%d filters, want %d", len(got), len(want))
	}
	return nil
}

// delRoot removes the root qdisc if the plugin made it.
func delRoot(s side, kinds ...string) error {
	q, err := s.h.RootQdisc(s.index)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if q.Kind == kind && q.Handle == rootHandle() {
			return s.h.DelQdisc(s.index, q)
		}
	}
	return nil
}

// putIFB leads what arrives at s through a new intermediate device called name,
// and limits it there. It reports whether it made the qdisc that carries the
// redirection.
func putIFB(s side, name string, l *Limit, nets subnets, end rtnl.End, rb *rollback.Stack) (clsact bool, err error) {
	queue := ifbQueue
	if !nets.none() {
		queue = ifbQueueTree
	}
	if err := s.h.AddIFB(name, min(s.mtu, ifbMTU), queue); err != nil {
		return false, err
	}
	rb.Push("intermediate device "+name, func(context.Context) error { return delIFB(s, name) })
	ifb, err := s.ifbSide(name)
	if err != nil {
		return false, err
	}
	if err := putTBF(ifb, l, nets, end, rb); err != nil {
		return false, err
	}
	carrier := rtnl.Clsact()
	switch err := s.h.AddQdisc(s.index, carrier, false); {
	case err == nil:
		clsact = true
		rb.Push("clsact", func(context.Context) error { return s.h.DelQdisc(s.index, carrier) })
	case !errors.Is(err, rtnl.ErrExist):
		return false, err
	}
	err = s.h.AddFilter(s.index, rtnl.Filter{Parent: rtnl.HookIngress, Priority: redirectPriority, RedirectTo: ifb.index})
	if err != nil {
		return clsact, err
	}
	rb.Push("redirection", func(context.Context) error { return delRedirect(s, false) })
	return clsact, nil
}

// checkIFB compares what is there with what putIFB makes.
func checkIFB(s side, name string, l *Limit, nets subnets, end rtnl.End) error {
	ifb, err := s.ifbSide(name)
	if err != nil {
		return err
	}
	got, err := s.h.Filters(s.index, rtnl.HookIngress)
	if err != nil {
		return err
	}
	redirected := false
	for _, f := range got {
		redirected = redirected || f.RedirectTo == ifb.index
	}
	if !redirected {
		return fmt.Errorf("nothing redirects to %s", name)
	}
	return checkTBF(ifb, l, nets, end)
}

// delRedirect removes the redirection, and its qdisc if the plugin made it and it carries
// nothing else.
func delRedirect(s side, clsact bool) error {
	if err := s.h.DelFilters(s.index, rtnl.HookIngress, redirectPriority, unix.ETH_P_ALL); err != nil {
		return err
	}
	if !clsact {
		return nil
	}
	for _, hook := range []uint32{rtnl.HookIngress, rtnl.HookEgress} {
		if left, err := s.h.Filters(s.index, hook); err != nil || len(left) > 0 {
			return err
		}
	}
	return s.h.DelQdisc(s.index, rtnl.Clsact())
}

// delIFB removes the intermediate device called name in s's namespace. Missing
// is success, and so is a device of another kind under that name.
func delIFB(s side, name string) error {
	ifb, err := s.ifbSide(name)
	if errors.Is(err, rtnl.ErrNotFound) || errors.Is(err, rtnl.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.h.DelLink(ifb.index); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return err
	}
	return nil
}
