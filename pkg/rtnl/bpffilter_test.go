// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	tc "github.com/florianl/go-tc"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

// emptyProgram lets every packet go on.
func emptyProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p := must[*ebpf.Program](t)(ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "BSD", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	}))
	t.Cleanup(func() { p.Close() })
	return p
}

// What we write another library must read the same way, and the other way round.
func TestPrivilegedBPFFilter(t *testing.T) {
	ns := mustNS(t)
	h := mustHandle(t, ns)
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	a := must[Link](t)(h.LinkByName("a")).Index
	first, second := emptyProgram(t), emptyProgram(t)
	f := BPFFilter{Parent: HookEgress, Priority: 0x534c, Protocol: unix.ETH_P_ALL, Handle: 7, FD: first.FD(), Name: "first", ClassID: 9}
	if err := h.PutBPF(a, f); !errors.Is(err, unix.EINVAL) {
		t.Errorf("without a qdisc: %v", err)
	}
	ok(t, h.DelBPF(a, f))
	ok(t, h.AddQdisc(a, Qdisc{Kind: QdiscClsact, Parent: ParentIngress}, false))

	ok(t, h.PutBPF(a, f))
	f.FD, f.Name = second.FD(), "second"
	ok(t, h.PutBPF(a, f)) // in its place
	other := witness(t, ns)
	seen := must[[]tc.Object](t)(other.Filter().Get(&tc.Msg{Ifindex: uint32(a), Parent: tc.HandleRoot&0xffff0000 | tc.HandleMinEgress}))
	var got []BPFFilter
	for _, o := range seen {
		if o.Handle == 0 { // the head of the list
			continue
		}
		if *o.BPF.Flags != tc.BpfActDirect || *o.BPF.ID != programID(t, second) {
			t.Errorf("flags %x, program %d", *o.BPF.Flags, *o.BPF.ID)
		}
		proto := uint16(o.Info)
		got = append(got, BPFFilter{o.Parent, uint16(o.Info >> 16), proto<<8 | proto>>8, o.Handle, f.FD, *o.BPF.Name, *o.BPF.ClassID})
	}
	if diff := cmp.Diff([]BPFFilter{f}, got); diff != "" {
		t.Errorf("as another library reads it (-want +got):\n%s", diff)
	}

	want := FilterStatus{Kind: "bpf", Parent: HookEgress, Priority: f.Priority, Protocol: f.Protocol, Handle: 7, ClassID: 9, Program: "second", ProgramID: programID(t, second)}
	if diff := cmp.Diff([]FilterStatus{want}, must[[]FilterStatus](t)(h.FiltersAt(a, HookEgress, f.Priority, f.Protocol))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// Another priority, handle, direction: each is a filter of its own.
	fd, flags, name := uint32(first.FD()), uint32(tc.BpfActDirect), "theirs"
	theirs := &tc.Object{
		Msg:       tc.Msg{Ifindex: uint32(a), Parent: HookEgress, Handle: 1, Info: 5<<16 | uint32(unix.ETH_P_ALL<<8&0xff00)},
		Attribute: tc.Attribute{Kind: "bpf", BPF: &tc.Bpf{FD: &fd, Name: &name, Flags: &flags}},
	}
	ok(t, other.Filter().Add(theirs))
	same := f
	same.Handle = 8
	ok(t, h.PutBPF(a, same))
	all := must[[]FilterStatus](t)(h.Filters(a, HookEgress))
	names := cmp.Transformer("names", func(f []FilterStatus) (out []string) {
		for _, f := range f {
			out = append(out, f.Program)
		}
		return out
	})
	if diff := cmp.Diff([]FilterStatus{{Program: "theirs"}, {Program: "second"}, {Program: "second"}}, all, names, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := must[[]FilterStatus](t)(h.FiltersAt(a, HookEgress, 5, unix.ETH_P_ALL)); len(got) != 1 || got[0].Program != "theirs" {
		t.Errorf("of priority 5: %+v", got)
	}
	if got := must[[]FilterStatus](t)(h.Filters(a, HookIngress)); len(got) != 0 {
		t.Errorf("ingress: %+v", got)
	}

	for range 2 {
		ok(t, h.DelBPF(a, f))
	}
	left := must[[]FilterStatus](t)(h.Filters(a, HookEgress))
	if len(left) != 2 || left[0].Program != "theirs" || left[1].Handle != 8 {
		t.Errorf("after one was deleted: %+v", left)
	}
	ok(t, h.DelLink(a))
	ok(t, h.DelBPF(a, same))
	if err := h.PutBPF(a, f); !errors.Is(err, unix.ENODEV) {
		t.Errorf("on a device that is gone: %v", err)
	}
}

// witness is a tc connection of another library into ns.
func witness(t *testing.T, ns *netns.NS) *tc.Tc {
	t.Helper()
	c := must[*tc.Tc](t)(tc.Open(&tc.Config{NetNS: ns.Fd()}))
	t.Cleanup(func() { c.Close() })
	return c
}

func programID(t *testing.T, p *ebpf.Program) uint32 {
	t.Helper()
	id, there := must[*ebpf.ProgramInfo](t)(p.Info()).ID()
	if !there {
		t.Fatal("the kernel gives programs no id")
	}
	return uint32(id)
}
