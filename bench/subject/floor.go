// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// floor is the routed pod with a program at either end of its way that carries
// one hostPort: every address is a constant, nothing is looked up, learned,
// counted or checked. It is no datapath. What it costs beside direct is what any
// program at these hooks costs on this kernel and machine, and so the bound of
// what Sluice can reach. With learned the pod is on a bridge, and the SYN and
// the answer to it go the stack's way, as those of every connection that others
// on the node may have a say in: the bound of what a learned path can reach.
// Kernel 6.6, for tcx.
func (w *World) floor(learned bool) (*netlab.NS, netip.AddrPort, error) {
	server, _, err := w.routed(learned)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	client := w.lab.Client()
	links := make(map[string]*net.Interface)
	for _, at := range []struct {
		ns         *netlab.NS
		name, role string
	}{{w.lab.Node.NS, client.Uplink.Name, "uplink"}, {w.lab.Node.NS, routedDoor, "door"}, {server, "eth0", "pod"}, {client.NS, "eth0", "client"}} {
		if err := at.ns.Do(func() (err error) { links[at.role], err = net.InterfaceByName(at.name); return err }); err != nil {
			return nil, netip.AddrPort{}, err
		}
	}
	uplink, door := links["uplink"], links["door"]
	node := netlab.IP4(client.Uplink.Node)
	w.target = netip.AddrPortFrom(node, FirstHostPort)
	in := constantNAT{
		addr: offDestination, port: offDestinationPort, from: node, to: routedPod,
		dst: links["pod"].HardwareAddr, src: door.HardwareAddr,
		redirect: asm.FnRedirectPeer, out: door.Index,
	}
	out := constantNAT{
		addr: offSource, port: offSourcePort, from: routedPod, to: node,
		dst: links["client"].HardwareAddr, src: uplink.HardwareAddr,
		redirect: asm.FnRedirect, out: uplink.Index,
	}
	err = w.lab.Node.Do(func() error {
		var stack error
		if learned {
			leaves := out
			in.syn, out.syn, leaves.syn = synTranslated, synLeft, synAlone
			stack = w.attachFloor(uplink.Index, ebpf.AttachTCXEgress, leaves)
		}
		return errors.Join(stack, w.attachFloor(uplink.Index, ebpf.AttachTCXIngress, in), w.attachFloor(door.Index, ebpf.AttachTCXIngress, out))
	})
	return server, netip.AddrPortFrom(netip.IPv4Unspecified(), FirstHostPort), err
}

func (w *World) attachFloor(ifindex int, at ebpf.AttachType, n constantNAT) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bench_floor", Type: ebpf.SchedCLS, Instructions: n.program(), License: "Dual BSD/GPL"})
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: at})
	if err != nil {
		return fmt.Errorf("attach to ifindex %d: %w", ifindex, err)
	}
	w.attached = append(w.attached, l)
	return nil
}

// Offsets in a frame of TCP over IPv4 without options, and in struct __sk_buff.
const (
	offType            = 12
	offVersion         = 14
	offProtocol        = 14 + 9
	offIPCheck         = 14 + 10
	offSource          = 14 + 12
	offDestination     = 14 + 16
	offSourcePort      = 14 + 20
	offDestinationPort = 14 + 22
	offTCPFlags        = 14 + 20 + 13
	offTCPCheck        = 14 + 20 + 16
	frameLen           = 14 + 20 + 20

	flagSYN = 0x02

	skbData, skbDataEnd = 76, 80
)

// What a constantNAT does with SYN and SYN-ACK.
type synRule int

const (
	synShort      synRule = iota // as with all others
	synTranslated                // to the stack, translated
	synLeft                      // to the stack as they are
	synAlone                     // as synTranslated; to all others it does nothing
)

// constantNAT rewrites one address of the packets of one port.
type constantNAT struct {
	addr, port int16 // offsets of the address, and of the port that tells whose packet it is
	from, to   netip.Addr
	dst, src   net.HardwareAddr
	redirect   asm.BuiltinFunc
	out        int // ifindex
	syn        synRule
}

func (n constantNAT) program() asm.Instructions {
	const pass, translate = "pass", "translate"
	half := func(v uint16) int32 {
		return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
	}
	word := func(a netip.Addr) int64 { b := a.As4(); return int64(binary.NativeEndian.Uint32(b[:])) }
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, skbData, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, skbDataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, frameLen),
		asm.JGT.Reg(asm.R4, asm.R3, pass),
	}
	for _, want := range []struct {
		off   int16
		size  asm.Size
		value int32
	}{{offType, asm.Half, half(0x0800)}, {offVersion, asm.Byte, 0x45}, {offProtocol, asm.Byte, 6}, {n.port, asm.Half, half(FirstHostPort)}} {
		insns = append(insns, asm.LoadMem(asm.R4, asm.R2, want.off, want.size), asm.JNE.Imm(asm.R4, want.value, pass))
	}
	insns = append(insns, asm.LoadMem(asm.R7, asm.R2, offTCPFlags, asm.Byte), asm.And.Imm(asm.R7, flagSYN))
	switch n.syn {
	case synTranslated:
		insns = append(insns, asm.JNE.Imm(asm.R7, 0, translate))
	case synLeft:
		insns = append(insns, asm.JNE.Imm(asm.R7, 0, pass))
	case synAlone:
		insns = append(insns, asm.JEq.Imm(asm.R7, 0, pass))
	}
	for i, macs := 0, slices.Concat(n.dst, n.src); i < len(macs) && n.syn != synAlone; i += 2 {
		insns = append(insns, asm.StoreImm(asm.R2, int16(i), int64(binary.NativeEndian.Uint16(macs[i:])), asm.Half))
	}
	insns = append(insns, asm.LoadImm(asm.R4, word(n.to), asm.DWord).WithSymbol(translate), asm.StoreMem(asm.R2, n.addr, asm.R4, asm.Word))
	const addrSize, pseudoHeader = 4, 1 << 4 // flags of the helpers
	for _, sum := range []struct {
		helper     asm.BuiltinFunc
		off, flags int32
	}{{asm.FnL3CsumReplace, offIPCheck, addrSize}, {asm.FnL4CsumReplace, offTCPCheck, addrSize | pseudoHeader}} {
		insns = append(insns,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, sum.off),
			asm.LoadImm(asm.R3, word(n.from), asm.DWord),
			asm.LoadImm(asm.R4, word(n.to), asm.DWord),
			asm.Mov.Imm(asm.R5, sum.flags),
			sum.helper.Call(),
		)
	}
	if n.syn == synTranslated {
		insns = append(insns, asm.JNE.Imm(asm.R7, 0, pass))
	}
	if n.syn != synAlone {
		insns = append(insns,
			asm.Mov.Imm(asm.R1, int32(n.out)),
			asm.Mov.Imm(asm.R2, 0),
			n.redirect.Call(),
			asm.Return(),
		)
	}
	return append(insns,
		asm.Mov.Imm(asm.R0, -1).WithSymbol(pass), // TCX_NEXT
		asm.Return(),
	)
}
