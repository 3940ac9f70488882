// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// nfctOffset returns where sk_buff has its pointer to netfilter's entry (_nfct), in bytes. By it the programs know whether netfilter
// tracks a packet (bpf/lib/conntrack/netfilter.h). An error says why they cannot read it: the kernel has no BTF, was built without
// conntrack, or does not let us read its memory (no CAP_PERFMON, lockdown in confidentiality mode).
func nfctOffset(cache *btf.Cache) (uint32, error) {
	spec, err := cache.Kernel()
	if err != nil {
		return 0, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	var skb *btf.Struct
	if err := spec.TypeByName("sk_buff", &skb); err != nil {
		return 0, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	offset, ok := memberOffset(skb.Members, "_nfct")
	if !ok {
		return 0, errors.New("packets of this kernel have no conntrack entry")
	}
	return offset.Bytes(), askReadKernel(offset.Bytes())
}

// memberOffset looks for a member, also in the anonymous structs and unions between members.
func memberOffset(members []btf.Member, name string) (btf.Bits, bool) {
	for _, m := range members {
		if m.Name == name {
			return m.Offset, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if offset, ok := memberOffset(inner, name); ok {
			return m.Offset + offset, true
		}
	}
	return 0, false
}

// askReadKernel loads a program that reads its packet's memory at offset, as nf_tracks() does.
func askReadKernel(offset uint32) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sl_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R3, asm.R1),
			asm.Add.Imm(asm.R3, int32(offset)),
			asm.Mov.Reg(asm.R1, asm.RFP),
			asm.Add.Imm(asm.R1, -8),
			asm.Mov.Imm(asm.R2, 8),
			asm.FnProbeReadKernel.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("read a packet's conntrack entry: %w", err)
	}
	return prog.Close()
}
