// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// A walk must choose the time and the dice, make helpers fail, and see where a
// redirect leads, which BPF_PROG_TEST_RUN does not tell. So the calls of a few
// helpers are led through small functions that look into a one-entry map. Each
// calls the helper itself unless told otherwise; nothing else of the program
// changes. Programs loaded without seams run in the load, budget and fuzz tests.
const (
	seamMap = "test_seam"

	seamClock   = 0        // u64: what bpf_ktime_get_ns returns; 0 = the real time
	seamRandom  = 8        // u32: what bpf_get_prandom_u32 returns if the next word is set
	seamDice    = 12       // u32
	seamFail    = 16       // u32: bit mask of seamFailures
	seamKind    = 20       // u32: 0 none, else redirectPeer, redirectNeigh or redirectLink
	seamIfindex = 24       // u32: where the redirect leads
	seamPktType = 28       // u32: argument of bpf_skb_change_type + 1; 0 = not called
	seamNeigh   = 32       // 20 bytes: struct bpf_redir_neigh
	seamRival   = 56       // struct sl_flow: what failMapRace inserts
	seamNfct    = 56 + 168 // u64: what bpf_probe_read_kernel reads of the packet: sk_buff._nfct
	seamCsum    = 56 + 168 + 8
	seamTuples  = 56 + 168 + 16 // what it reads of nf_conn: tuplehash
	seamSize    = 56 + 168 + 16 + nfTuplesSize
)

// A test cannot set skb->tc_classid, which carries the number of a pod's own device: its loads become loads of skb->cb.
const (
	offTCClassID = 72
	offCb        = 48
	ownNumberCb  = 4
)

const (
	redirectNone = iota
	redirectPeer
	redirectNeigh
	redirectLink // bpf_redirect: the packet is addressed already
)

// Helpers that a test can make fail with -ENOMEM, and a lost race: the next update
// of a map finds that another CPU has just put a rival entry under the key.
const (
	failMapUpdate = 1 << iota
	failL4Csum
	failStoreBytes
	failMapRace
)

// seamState is the content of the seam map: four inputs, then what the program
// did.
type seamState struct {
	clock   uint64
	random  uint32
	dice    bool
	fail    uint32
	kind    uint32
	ifindex uint32
	pktType uint32
	neighAF uint32
	neigh   [16]byte
	rival   bpfgen.TypesSlCtEntry // input
	nfct    uint64                // input
	csum    uint64                // input
	tuples  [nfTuplesSize]byte    // input
}

// nextHop returns the neighbour that bpf_redirect_neigh was given.
func (s *seamState) nextHop() netip.Addr {
	if s.neighAF == 2 { // AF_INET
		return netip.AddrFrom4([4]byte(s.neigh[:4]))
	}
	return netip.AddrFrom16(s.neigh)
}

// addSeams rewires the helper calls of every program of spec.
func addSeams(spec *ebpf.CollectionSpec) {
	spec.Maps[seamMap] = &ebpf.MapSpec{
		Name: seamMap, Type: ebpf.Array, KeySize: 4, ValueSize: seamSize, MaxEntries: 1, Pinning: ebpf.PinByName,
	}
	for _, p := range spec.Programs {
		if strings.HasPrefix(p.Name, "sl_ns_") {
			numberFromCb(p.Instructions)
		}
		p.Instructions = withSeams(p.Instructions)
	}
}

// numberFromCb changes the program itself, which is the first function: the others read other structs at that offset.
func numberFromCb(insns asm.Instructions) {
	for i := range insns {
		ins := &insns[i]
		if i > 0 && btf.FuncMetadata(ins) != nil {
			return
		}
		if ins.OpCode == asm.LoadMemOp(asm.Word) && ins.Offset == offTCClassID {
			ins.Offset = offCb + 4*ownNumberCb
		}
	}
}

func withSeams(insns asm.Instructions) asm.Instructions {
	used := map[asm.BuiltinFunc]bool{}
	for i := range insns {
		ins := &insns[i]
		if !ins.IsBuiltinCall() {
			continue
		}
		fn := asm.BuiltinFunc(ins.Constant)
		if _, ok := seams[fn]; !ok {
			continue
		}
		used[fn] = true
		call := asm.Call.Label(seamName(fn))
		call.Metadata = ins.Metadata
		*ins = call.WithReference(seamName(fn))
	}
	for fn := range used {
		body := seams[fn](fn)
		// The kernel also wants a source line at the start of each function: any will do.
		body[0] = btf.WithFuncMetadata(body[0].WithSymbol(seamName(fn)), seamBTF(fn)).WithSource(insns[0].Source())
		insns = append(insns, body...)
	}
	return insns
}

func seamName(fn asm.BuiltinFunc) string { return "seam_" + fn.String() }

// The kernel wants BTF for each function once one has it.
func seamBTF(fn asm.BuiltinFunc) *btf.Func {
	u64 := &btf.Int{Name: "unsigned long long", Size: 8}
	proto := &btf.FuncProto{Return: u64}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		proto.Params = append(proto.Params, btf.FuncParam{Name: name, Type: u64})
	}
	return &btf.Func{Name: seamName(fn), Type: proto, Linkage: btf.StaticFunc}
}

var seams = map[asm.BuiltinFunc]func(asm.BuiltinFunc) asm.Instructions{
	asm.FnKtimeGetNs:    seamKtime,
	asm.FnGetPrandomU32: seamPrandom,
	asm.FnRedirect:      seamRedirect(redirectLink),
	asm.FnRedirectPeer:  seamRedirect(redirectPeer),
	asm.FnRedirectNeigh: seamRedirectNeigh,
	asm.FnSkbChangeType: seamChangeType,
	asm.FnMapUpdateElem: seamMapUpdate,
	asm.FnL4CsumReplace: seamFailing(failL4Csum),
	asm.FnSkbStoreBytes: seamFailing(failStoreBytes),

	asm.FnProbeReadKernel: seamProbeReadKernel,
}

func seamAt(dst asm.Register) asm.Instruction {
	return asm.LoadMapValue(dst, 0, 0).WithReference(seamMap)
}

func seamKtime(fn asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		seamAt(asm.R1),
		asm.LoadMem(asm.R0, asm.R1, seamClock, asm.DWord),
		asm.JNE.Imm(asm.R0, 0, "ktime_out"),
		fn.Call(),
		asm.Return().WithSymbol("ktime_out"),
	}
}

func seamPrandom(fn asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		seamAt(asm.R1),
		asm.LoadMem(asm.R0, asm.R1, seamRandom, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, seamDice, asm.Word),
		asm.JNE.Imm(asm.R2, 0, "prandom_out"),
		fn.Call(),
		asm.Return().WithSymbol("prandom_out"),
	}
}

// seamProbeReadKernel has what sk_buff says from the test: BPF_PROG_TEST_RUN makes packets that netfilter does not track, with checksums that
// are made.
func seamProbeReadKernel(fn asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		seamAt(asm.R4),
		asm.JNE.Imm(asm.R2, nfTuplesSize, "not_tuples"),
		asm.Mov.Reg(asm.R3, asm.R4),
		asm.Add.Imm(asm.R3, seamTuples),
		fn.Call(),
		asm.Return(),
		asm.LoadMem(asm.R0, asm.R4, seamNfct, asm.DWord).WithSymbol("not_tuples"),
		asm.JNE.Imm(asm.R2, csumPart, "not_csum"),
		asm.LoadMem(asm.R0, asm.R4, seamCsum, asm.DWord),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord).WithSymbol("not_csum"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

func seamRedirect(kind int64) func(asm.BuiltinFunc) asm.Instructions {
	return func(fn asm.BuiltinFunc) asm.Instructions {
		return asm.Instructions{
			seamAt(asm.R3),
			asm.StoreImm(asm.R3, seamKind, kind, asm.Word),
			asm.StoreMem(asm.R3, seamIfindex, asm.R1, asm.Word),
			fn.Call(),
			asm.Return(),
		}
	}
}

func seamRedirectNeigh(fn asm.BuiltinFunc) asm.Instructions {
	insns := asm.Instructions{
		seamAt(asm.R5),
		asm.StoreImm(asm.R5, seamKind, redirectNeigh, asm.Word),
		asm.StoreMem(asm.R5, seamIfindex, asm.R1, asm.Word),
	}
	for i := int16(0); i < 20; i += 4 {
		insns = append(insns,
			asm.LoadMem(asm.R0, asm.R2, i, asm.Word),
			asm.StoreMem(asm.R5, seamNeigh+i, asm.R0, asm.Word))
	}
	return append(insns, fn.Call(), asm.Return())
}

func seamChangeType(fn asm.BuiltinFunc) asm.Instructions {
	return asm.Instructions{
		seamAt(asm.R3),
		asm.Mov.Reg(asm.R0, asm.R2),
		asm.Add.Imm(asm.R0, 1),
		asm.StoreMem(asm.R3, seamPktType, asm.R0, asm.Word),
		fn.Call(),
		asm.Return(),
	}
}

func seamFailing(bit int32) func(asm.BuiltinFunc) asm.Instructions {
	return func(fn asm.BuiltinFunc) asm.Instructions {
		label := seamName(fn) + "_ok"
		return asm.Instructions{
			seamAt(asm.R0),
			asm.LoadMem(asm.R0, asm.R0, seamFail, asm.Word),
			asm.And.Imm(asm.R0, bit),
			asm.JEq.Imm(asm.R0, 0, label),
			asm.Mov.Imm(asm.R0, -12), // -ENOMEM
			asm.Return(),
			fn.Call().WithSymbol(label),
			asm.Return(),
		}
	}
}

func seamMapUpdate(fn asm.BuiltinFunc) asm.Instructions {
	race := asm.Instructions{
		seamAt(asm.R0),
		asm.LoadMem(asm.R5, asm.R0, seamFail, asm.Word),
		asm.And.Imm(asm.R5, failMapRace),
		asm.JEq.Imm(asm.R5, 0, "no_race"),
		asm.StoreImm(asm.R0, seamFail, 0, asm.Word), // once
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Reg(asm.R7, asm.R2),
		asm.Mov.Reg(asm.R8, asm.R3),
		asm.Mov.Reg(asm.R9, asm.R4),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.Add.Imm(asm.R3, seamRival),
		asm.Mov.Imm(asm.R4, 0),
		fn.Call(),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.Mov.Reg(asm.R4, asm.R9),
	}
	rest := seamFailing(failMapUpdate)(fn)
	rest[0] = rest[0].WithSymbol("no_race")
	return append(race, rest...)
}

// seam reads the seam map, setSeam writes it.
func (o *programSet) seam(tb testing.TB) seamState {
	tb.Helper()
	var raw [seamSize]byte
	if err := o.maps[seamMap].Lookup(uint32(0), &raw); err != nil {
		tb.Fatal(err)
	}
	e := binary.NativeEndian
	s := seamState{
		clock: e.Uint64(raw[seamClock:]), random: e.Uint32(raw[seamRandom:]), dice: e.Uint32(raw[seamDice:]) != 0,
		fail: e.Uint32(raw[seamFail:]), kind: e.Uint32(raw[seamKind:]), ifindex: e.Uint32(raw[seamIfindex:]),
		pktType: e.Uint32(raw[seamPktType:]), neighAF: e.Uint32(raw[seamNeigh:]),
	}
	copy(s.neigh[:], raw[seamNeigh+4:])
	return s
}

// setSeam writes the inputs and clears what the programs report.
func (o *programSet) setSeam(tb testing.TB, s seamState) {
	tb.Helper()
	var raw [seamSize]byte
	e := binary.NativeEndian
	e.PutUint64(raw[seamClock:], s.clock)
	e.PutUint32(raw[seamRandom:], s.random)
	if s.dice {
		e.PutUint32(raw[seamDice:], 1)
	}
	e.PutUint32(raw[seamFail:], s.fail)
	if _, err := binary.Encode(raw[seamRival:], e, &s.rival); err != nil {
		tb.Fatal(err)
	}
	e.PutUint64(raw[seamNfct:], s.nfct)
	e.PutUint64(raw[seamCsum:], s.csum)
	copy(raw[seamTuples:], s.tuples[:])
	if err := o.maps[seamMap].Put(uint32(0), &raw); err != nil {
		tb.Fatal(err)
	}
}
