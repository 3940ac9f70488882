// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Probe implements loadapi.Loader.
func (InProcess) Probe(context.Context) ([]loadapi.ProbeResult, error) {
	raiseMemlock() // the probes load programs
	var answers []loadapi.ProbeResult
	for _, q := range []struct {
		name string
		ask  func() error // nil: yes; loadapi.UnsupportedError: no; anything else: unclear
	}{
		{loadapi.SchedCLS, askSchedCLS},
		{loadapi.LRU, askLRU},
		{loadapi.RedirectPeer, askRedirectPeer},
		{loadapi.RedirectNeigh, askRedirectNeigh},
		{loadapi.TCX, askTCX},
		{loadapi.Clsact, askClsact},
		{loadapi.FIBSrc, askFIBSrc},
		{loadapi.Coarse, askCoarse},
		{loadapi.SkNetns, askSkNetns},
		{loadapi.Netkit, askNetkit},
		{loadapi.Batch, askBatch},
		{loadapi.Serial, askSerial},
	} {
		a := loadapi.ProbeResult{Name: q.name}
		var no loadapi.UnsupportedError
		if err := q.ask(); errors.As(err, &no) {
			a.No = no.Why
		} else if err != nil {
			a.Unclear = err.Error()
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// feature turns an answer of the features package into ours: only its ErrNotSupported is a no.
func feature(err error, since string) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return loadapi.No("not in this kernel (Linux %s or newer, here %s)", since, bpfsys.KernelRelease())
	}
	return err
}

func askSchedCLS() error { return feature(features.HaveProgramType(ebpf.SchedCLS), "4.4") }

func askLRU() error { return feature(features.HaveMapType(ebpf.LRUHash), "4.10") }

func askRedirectPeer() error {
	return feature(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer), "5.10")
}

func askRedirectNeigh() error {
	return feature(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectNeigh), "5.10")
}

func askCoarse() error {
	return feature(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnKtimeGetCoarseNs), "5.11")
}

func askSkNetns() error {
	return feature(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnGetNetnsCookie), "6.15")
}

// nextProgram is the smallest program that lets the next one decide.
func nextProgram() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sl_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
}

// askTCX creates a link on a device that cannot exist: a kernel that knows tcx says so, an older one refuses the request.
func askTCX() error {
	prog, err := nextProgram()
	if err != nil {
		return err
	}
	defer prog.Close()
	return feature(noDevice(link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress})), "6.6")
}

// noDevice is nil if the answer is that the device does not exist.
func noDevice(l link.Link, err error) error {
	switch {
	case err == nil:
		return errors.Join(errors.New("a link on a device that does not exist"), l.Close())
	case errors.Is(err, unix.ENODEV):
		return nil
	}
	return err
}

// askNetkit asks for a link of a device that cannot exist, as askTCX does. A kernel without netkit does not know the place.
func askNetkit() error {
	prog, err := nextProgram()
	if err != nil {
		return err
	}
	defer prog.Close()
	err = noDevice(link.AttachNetkit(link.NetkitOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachNetkitPeer}))
	if errors.Is(err, unix.EINVAL) {
		return loadapi.No("not in this kernel (Linux 6.7 or newer with CONFIG_NETKIT, here %s)", bpfsys.KernelRelease())
	}
	return feature(err, "6.7")
}

// askClsact attaches a filter in a network namespace made for it: there is no other way to ask, since the kernel looks for
// the device before it looks for the qdisc.
func askClsact() error {
	prog, err := nextProgram()
	if err != nil {
		return err
	}
	defer prog.Close()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends in the namespace, and the namespace with it
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
			const loopback = 1
			h, err := rtnl.New()
			if err != nil {
				return err
			}
			defer h.Close()
			if err := h.AddQdisc(loopback, rtnl.Clsact(), false); err != nil {
				return clsactAnswer(err)
			}
			return clsactAnswer(h.PutBPF(loopback, rtnl.BPFFilter{
				Parent: rtnl.HookIngress, Priority: 1, Protocol: unix.ETH_P_ALL, Handle: 1, Name: "sl_probe", FD: prog.FD(),
			}))
		}()
	}()
	return <-result
}

func clsactAnswer(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return loadapi.No("the kernel has no sch_ingress or cls_bpf: %v", err)
	}
	return err
}

// bpfFIBLookupSrc is BPF_FIB_LOOKUP_SRC of <linux/bpf.h>.
const bpfFIBLookupSrc = 1 << 4

// askFIBSrc runs a program that looks a route up with the flag: a kernel that does not know it answers -EINVAL.
func askFIBSrc() error {
	const size, loopback = 64, 1 // of struct bpf_fib_lookup
	ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for off := int16(-size); off < 0; off += 4 {
		ins = append(ins, asm.StoreImm(asm.RFP, off, 0, asm.Word))
	}
	ins = append(ins,
		asm.StoreImm(asm.RFP, -size, unix.AF_INET, asm.Byte),
		asm.StoreImm(asm.RFP, -size+8, loopback, asm.Word),
		asm.StoreImm(asm.RFP, -size+32, int64(binary.NativeEndian.Uint32([]byte{127, 0, 0, 1})), asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -size),
		asm.Mov.Imm(asm.R3, size),
		asm.Mov.Imm(asm.R4, bpfFIBLookupSrc),
		asm.FnFibLookup.Call(),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "sl_probe", Type: ebpf.SchedCLS, License: "GPL", Instructions: ins})
	if err != nil {
		return err
	}
	defer prog.Close()
	ret, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		return err
	}
	if int32(ret) == -int32(unix.EINVAL) {
		return loadapi.No("not in this kernel (Linux 6.7 or newer, here %s)", bpfsys.KernelRelease())
	}
	return nil
}

// askBatch reads an empty map in one go.
func askBatch() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "sl_probe", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	var cursor ebpf.MapBatchCursor
	_, err = m.BatchLookup(&cursor, make([]uint32, 1), make([]uint32, 1), nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return feature(err, "5.6")
}
