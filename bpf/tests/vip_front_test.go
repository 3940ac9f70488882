// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// BPF_PROG_TEST_RUN cannot make every packet that a device can. A small program in
// front of the real one makes it and goes on by a tail call.

// behind returns a program that runs prepare (the packet is in R6) and then the
// program of a hook. It goes with the test.
func (o *programSet) behind(tb testing.TB, h hook, prepare ...asm.Instruction) *ebpf.Program {
	tb.Helper()
	table, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { table.Close() })
	if err := table.Put(uint32(0), *parts[h].into(o)); err != nil {
		tb.Fatal(err)
	}
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	insns = append(insns, prepare...)
	insns = append(insns,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, table.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 99), // no verdict of ours: the tail call failed
		asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: insns})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// cutting are programs that shorten the packet to cb[0] bytes first: Linux 6.15 and
// later refuse to make an IP packet without its whole header.
func (o *programSet) cutting(tb testing.TB) (fronts [hooks]*ebpf.Program) {
	tb.Helper()
	const cb = 48 // offset of cb[0] in struct __sk_buff
	for h := range fronts {
		fronts[h] = o.behind(tb, hook(h),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.LoadMem(asm.R2, asm.R6, cb, asm.Word),
			asm.Mov.Imm(asm.R3, 0),
			asm.StoreMem(asm.R6, cb, asm.R3, asm.Word), // before 6.3 no immediate may be stored there
			asm.FnSkbChangeTail.Call())
	}
	return fronts
}

// tooShort reports a frame that BPF_PROG_TEST_RUN may refuse.
func tooShort(raw []byte) bool {
	switch binary.BigEndian.Uint16(raw[12:]) {
	case typeIPv4:
		return len(raw) < ethLen+20
	case typeIPv6:
		return len(raw) < ethLen+40
	}
	return false
}
