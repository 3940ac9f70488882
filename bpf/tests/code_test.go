// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const codeFile = "testdata/code.json"

// code identifies the instructions of a program. It does not depend on a name, on line information or on BTF, so that a change of
// names alone leaves it as it is.
type code struct {
	Instructions int    `json:"instructions"`
	SHA256       string `json:"sha256"`
}

// functionsOf splits a program at its function symbols. The program itself comes first.
func functionsOf(insns asm.Instructions) (first string, functions map[string]asm.Instructions) {
	functions = map[string]asm.Instructions{}
	name := ""
	for _, ins := range insns {
		if sym := ins.Symbol(); sym != "" && !isJumpTarget(insns, sym) {
			name = sym
		}
		if first == "" {
			first = name
		}
		functions[name] = append(functions[name], ins)
	}
	return first, functions
}

// isJumpTarget tells a symbol inside a function from the beginning of one.
func isJumpTarget(insns asm.Instructions, sym string) bool {
	return slices.ContainsFunc(insns, func(ins asm.Instruction) bool {
		return ins.Reference() == sym && !ins.IsFunctionReference() && !ins.IsLoadFromMap()
	})
}

// hashFunction adds the function to h. A called function counts with its own hash, a map with its place among the maps of the
// function.
func hashFunction(h hash.Hash, functions map[string]asm.Instructions, name string) {
	places := map[string]int64{}
	for _, ins := range functions[name] {
		constant := ins.Constant
		switch {
		case ins.IsFunctionReference():
			callee := sha256.New()
			hashFunction(callee, functions, ins.Reference())
			h.Write(callee.Sum(nil))
			constant = 0
		case ins.IsLoadFromMap():
			place, ok := places[ins.Reference()]
			if !ok {
				place = int64(len(places))
				places[ins.Reference()] = place
			}
			constant ^= place
		}
		for _, v := range []int64{int64(ins.OpCode), int64(ins.Dst), int64(ins.Src), int64(ins.Offset), constant} {
			h.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
		}
	}
}

func codeOf(spec *ebpf.ProgramSpec) code {
	h := sha256.New()
	first, functions := functionsOf(spec.Instructions)
	hashFunction(h, functions, first)
	return code{len(spec.Instructions), hex.EncodeToString(h.Sum(nil))}
}

// allCode returns the code of every program, by its name.
func allCode(t *testing.T) map[string]code {
	t.Helper()
	all := map[string]code{}
	for _, part := range append(slices.Clone(parts), sockets, xdp) {
		spec, err := part.load()
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range spec.Programs {
			all[name] = codeOf(p)
		}
	}
	return all
}

// A change that should only rename things leaves the code as it is. Run the test with -update when the code is meant to change.
func TestCode(t *testing.T) {
	got := allCode(t)
	if *update {
		raw, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(codeFile, append(raw, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(codeFile)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]code
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if got[name] != want[name] {
			t.Errorf("%s: %+v, want %+v", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("programs are %v", slices.Sorted(maps.Keys(got)))
	}
}

// The hash follows a change of an instruction, of a called function and of a map, and no name.
func TestCodeFollowsInstructions(t *testing.T) {
	program := func(main, callee, m1, m2 string, imm int32) *ebpf.ProgramSpec {
		return &ebpf.ProgramSpec{Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, 0).WithReference(m1).WithSymbol(main),
			asm.LoadMapPtr(asm.R2, 0).WithReference(m2),
			asm.Call.Label(callee),
			asm.Return(),
			asm.Mov.Imm(asm.R0, imm).WithSymbol(callee),
			asm.Return(),
		}}
	}
	want := codeOf(program("a", "b", "x", "y", 1))
	if got := codeOf(program("c", "d", "v", "w", 1)); got != want {
		t.Errorf("other names: %+v, want %+v", got, want)
	}
	if got := codeOf(program("a", "b", "x", "y", 2)); got == want {
		t.Error("another instruction in the called function: same hash")
	}
	if got := codeOf(program("a", "b", "x", "x", 1)); got == want {
		t.Error("another map: same hash")
	}
}
