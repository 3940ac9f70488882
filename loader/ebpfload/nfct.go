// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// nfOffsets are where the programs find what netfilter knows of a packet (bpf/lib/conntrack/netfilter.h), in bytes; 0: unknown.
type nfOffsets struct {
	nfct        uint32 // of sk_buff._nfct, the pointer to the entry
	ext, status uint32 // of nf_conn.ext and nf_conn.status, in the entry
	tuples      uint32 // of nf_conn.tuplehash, the tuples of both directions, with nf_conn.status behind them
	err         error  // why the programs cannot read a packet's entry
}

// noTuples is why tuples is unknown; empty when it is known.
func (o nfOffsets) noTuples() string {
	switch {
	case o.tuples != 0:
		return ""
	case o.err != nil:
		return o.err.Error()
	}
	return "the kernel's types do not tell what an entry of netfilter looks like: conntrack is a module that is not loaded, or whose types a kernel before 5.11 leaves out"
}

// findNfOffsets asks the kernel's BTF. Its error says that the kernel has no BTF, was built without conntrack, or does not let us read its
// memory (no CAP_PERFMON, lockdown in confidentiality mode). Without the type of an entry, which a kernel before 5.11 may not tell if
// conntrack is a module (Debian's 5.10 tells it), only nfct is set.
func findNfOffsets(cache *btf.Cache) (o nfOffsets) {
	spec, err := cache.Kernel()
	if err != nil {
		return nfOffsets{err: fmt.Errorf("read the kernel's BTF: %w", err)}
	}
	if o.nfct, err = memberOf(spec, "sk_buff", "_nfct"); err != nil {
		return nfOffsets{err: err}
	}
	if err := askReadKernel(o.nfct); err != nil {
		return nfOffsets{err: err}
	}
	if _, err := memberOf(spec, "nf_conn", "status"); err != nil {
		if module, err := cache.Module("nf_conntrack"); err == nil {
			spec = module
		}
	}
	o.ext, _ = memberOf(spec, "nf_conn", "ext")
	o.status, _ = memberOf(spec, "nf_conn", "status")
	if tuples, err := memberOf(spec, "nf_conn", "tuplehash"); err == nil && tupleLayoutIsKnown(spec) && o.status == tuples+2*tupleHashSize {
		o.tuples = tuples
	}
	return o
}

// tupleHashSize is the size of struct nf_conntrack_tuple_hash, in bytes.
const tupleHashSize = 56

// tupleLayoutIsKnown reports whether an entry of nf_conn.tuplehash has the members that struct sl_nf_tuple of the programs names, at the
// same offsets. It has had them since before 5.10.
func tupleLayoutIsKnown(spec *btf.Spec) bool {
	var hash, tuple *btf.Struct
	if spec.TypeByName("nf_conntrack_tuple_hash", &hash) != nil || spec.TypeByName("nf_conntrack_tuple", &tuple) != nil {
		return false
	}
	at, ok := memberOffset(hash.Members, "tuple")
	dst, okDst := memberOffset(tuple.Members, "dst")
	return ok && okDst && at.Bytes() == 16 && dst.Bytes() == 20 && tuple.Size == 40 && hash.Size == tupleHashSize
}

// memberOf returns the offset of a member in bytes.
func memberOf(spec *btf.Spec, name, member string) (uint32, error) {
	var s *btf.Struct
	if err := spec.TypeByName(name, &s); err != nil {
		return 0, fmt.Errorf("read the kernel's BTF: struct %s: %w", name, err)
	}
	offset, ok := memberOffset(s.Members, member)
	if !ok {
		return 0, fmt.Errorf("struct %s of this kernel has no %s", name, member)
	}
	return offset.Bytes(), nil
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

// askReadKernel loads a program that reads its packet's memory at offset, as the programs do.
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
		return fmt.Errorf("read what the kernel knows of a packet: %w", err)
	}
	return prog.Close()
}
