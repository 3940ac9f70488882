// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// NetnsCookie implements loadapi.Loader. It connects a socket to an address that no host has, with a program in the way that refuses
// it and notes the cookie.
func (InProcess) NetnsCookie(_ context.Context, root string) (cookie uint64, err error) {
	raiseMemlock()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sl_probe", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	// 240.0.0.0/4 is reserved (RFC 1112); which of it is drawn, so that no other process meets the program.
	target := [4]byte{0xf0, byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())}
	prog, err := cookieProgram(m, target)
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: ebpf.AttachCGroupInet4Connect, Program: prog})
	if err != nil {
		return 0, fmt.Errorf("attach to cgroup %s: %w", root, err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: target}); !errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("this process is not below cgroup %s (connect: %w)", root, err)
	}
	return cookie, m.Lookup(uint32(0), &cookie)
}

func cookieProgram(m *ebpf.Map, target [4]byte) (*ebpf.Program, error) {
	const userIP4 = 4 // of struct bpf_sock_addr
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sl_probe", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, userIP4, asm.Word),
			asm.LoadImm(asm.R3, int64(binary.NativeEndian.Uint32(target[:])), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, "other"),
			asm.FnGetNetnsCookie.Call(),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.StoreImm(asm.RFP, -12, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -12),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
			asm.Mov.Imm(asm.R0, 0), asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("other"), asm.Return(),
		},
	})
}
