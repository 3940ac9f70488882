// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// What the stack frames of a chain of calls may take together (MAX_BPF_STACK),
// and to what every frame is rounded up before Linux 6.9, where it became 16
// (check_max_stack_depth, kernel/bpf/verifier.c).
const (
	stackLimit = 512
	frameUnit  = 32
)

// function is one of a program's.
type function struct {
	name  string
	depth int // bytes
	frame int // as the kernel counts
	calls []string
}

// functions splits a program as it will be loaded. A frame is as large as the
// lowest address that the function takes below its frame pointer.
func functions(ins asm.Instructions) map[string]*function {
	out := map[string]*function{}
	var f *function
	depth := 0
	end := func() {
		if f != nil {
			f.depth, f.frame = depth, (max(depth, 1)+frameUnit-1)/frameUnit*frameUnit
		}
	}
	for i, in := range ins {
		if sym := in.Symbol(); i == 0 || sym != "" && isFunction(ins, sym) {
			end()
			f, depth = &function{name: sym}, 0
			out[sym] = f
		}
		if in.IsFunctionCall() {
			f.calls = append(f.calls, in.Reference())
		}
		depth = max(depth, -lowest(ins, i))
	}
	end()
	return out
}

// lowest returns the offset from the frame pointer at which an instruction
// reads or writes, or that it computes for a pointer; 0 if none.
func lowest(ins asm.Instructions, i int) int {
	in := ins[i]
	switch class := in.OpCode.Class(); {
	case class.IsStore() && in.Dst == asm.RFP, class.IsLoad() && in.Src == asm.RFP:
		return min(int(in.Offset), 0)
	case class == asm.ALU64Class && in.OpCode.ALUOp() == asm.Add && in.OpCode.Source() == asm.ImmSource && i > 0:
		if from := ins[i-1]; from.OpCode.ALUOp() == asm.Mov && from.Src == asm.RFP && from.Dst == in.Dst {
			return min(int(in.Constant), 0)
		}
	}
	return 0
}

// isFunction reports whether a symbol is called.
func isFunction(ins asm.Instructions, sym string) bool {
	for _, in := range ins {
		if in.IsFunctionCall() && in.Reference() == sym {
			return true
		}
	}
	return false
}

// deepest returns the most that a chain of calls from name takes, and the chain.
func deepest(all map[string]*function, name string) (int, string) {
	f := all[name]
	most, chain := 0, ""
	for _, c := range f.calls {
		if n, text := deepest(all, c); n > most {
			most, chain = n, " > "+text
		}
	}
	return f.frame + most, fmt.Sprintf("%s %d (%d)%s", name, f.frame, f.depth, chain)
}

// Kernels before 6.9 round frames up further than the ones that most of us run,
// and refuse a program whose calls take more than 512 bytes in that measure.
func TestStackOnOldKernels(t *testing.T) {
	for name, ins := range everyProgram(t, true) { // with seams there is a call more
		n, chain := deepest(functions(ins), ins[0].Symbol())
		t.Logf("%3d bytes: %s", n, chain)
		if n > stackLimit {
			t.Errorf("%s takes %d bytes of stack, old kernels allow %d: %s", name, n, stackLimit, chain)
		}
	}
}
