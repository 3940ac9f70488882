// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// edge leads from an instruction to another one. Linux 5.10 walks a program
// depth first (check_cfg, kernel/bpf/verifier.c) and lets an edge close a loop
// only if it is a jump's: a body whose last instruction just runs into the
// first one again is "back-edge from insn".
type edge struct {
	to     int
	loopOK bool
}

// edges returns where each instruction leads, in the order in which the kernel
// takes them.
func edges(ins asm.Instructions) [][]edge {
	offset := make([]int, len(ins)) // in raw instructions
	index, symbols := map[int]int{}, map[string]int{}
	pos := 0
	for i := range ins {
		offset[i], index[pos] = pos, i
		if sym := ins[i].Symbol(); sym != "" {
			symbols[sym] = i
		}
		pos += int(ins[i].Width())
	}
	out := make([][]edge, len(ins))
	for i, in := range ins {
		target := func() int {
			if to, ok := symbols[in.Reference()]; ok {
				return to
			}
			return index[offset[i]+1+int(in.Offset)]
		}
		switch class, op := in.OpCode.Class(), in.OpCode.JumpOp(); {
		case !class.IsJump():
			out[i] = []edge{{i + 1, false}}
		case op == asm.Exit:
		case op == asm.Ja:
			out[i] = []edge{{target(), true}}
		case op == asm.Call:
			out[i] = []edge{{i + 1, false}}
			if in.IsFunctionCall() {
				out[i] = append(out[i], edge{symbols[in.Reference()], false})
			}
		default:
			out[i] = []edge{{i + 1, true}, {target(), true}}
		}
	}
	return out
}

// backEdge returns the ends of the first edge that old kernels refuse.
func backEdge(ins asm.Instructions) (from, to int, found bool) {
	const (
		unseen = iota
		onPath
		done
	)
	next, state := edges(ins), make([]int, len(ins))
	taken := make([]int, len(ins)) // edges of each that were followed
	path := []int{0}
	state[0] = onPath
	for len(path) > 0 {
		at := path[len(path)-1]
		if taken[at] == len(next[at]) {
			state[at] = done
			path = path[:len(path)-1]
			continue
		}
		e := next[at][taken[at]]
		taken[at]++
		switch {
		case state[e.to] == unseen:
			state[e.to] = onPath
			path = append(path, e.to)
		case state[e.to] == onPath && !e.loopOK:
			return at, e.to, true
		}
	}
	return 0, 0, false
}

// everyProgram returns all that is shipped, with seams added if told so.
func everyProgram(t *testing.T, seams bool) map[string]asm.Instructions {
	t.Helper()
	loads := []func() (*ebpf.CollectionSpec, error){objects.LoadSockLB, xdp.load}
	for _, part := range parts {
		loads = append(loads, part.load)
	}
	out := map[string]asm.Instructions{}
	for _, load := range loads {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		if seams {
			addSeams(spec)
		}
		for name, p := range spec.Programs {
			out[name] = p.Instructions
		}
	}
	return out
}

func TestLoopsOnOldKernels(t *testing.T) {
	for _, seams := range []bool{false, true} {
		for name, ins := range everyProgram(t, seams) {
			from, to, bad := backEdge(ins)
			if !bad {
				continue
			}
			line := from
			for ; line > 0 && ins[line].Source() == nil; line-- { // not every instruction has one
			}
			t.Errorf("%s (seams: %v): the loop at instruction %d closes without a jump, at %d, after %q: Linux 5.10 refuses it",
				name, seams, to, from, ins[line].Source())
		}
	}
}

// The test above must know what it looks for.
func TestBackEdge(t *testing.T) {
	mov := asm.Mov.Imm(asm.R0, 0)
	tests := []struct {
		name string
		ins  asm.Instructions
		bad  bool
	}{
		{"no loop", asm.Instructions{mov, asm.Return()}, false},
		{"closed by a jump", asm.Instructions{mov.WithSymbol("head"), asm.JNE.Imm(asm.R0, 1, "head"), asm.Return()}, false},
		{"entered in the middle", asm.Instructions{
			asm.Ja.Label("head"),
			asm.Add.Imm(asm.R0, 1).WithSymbol("latch"),
			asm.JNE.Imm(asm.R0, 1, "latch").WithSymbol("head"),
			asm.Return(),
		}, true},
	}
	for _, tt := range tests {
		if _, _, bad := backEdge(tt.ins); bad != tt.bad {
			t.Errorf("%s: %v", tt.name, bad)
		}
	}
}
