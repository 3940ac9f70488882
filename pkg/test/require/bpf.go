// SPDX-License-Identifier: Apache-2.0

package require

import (
	"errors"
	"math"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TCX needs tc programs attached by a link (Linux 6.6).
func TCX(t testing.TB) {
	t.Helper()
	Feature(t, "tcx", askTCX)
}

// askTCX makes a link on a device that cannot exist: a kernel with tcx says
// that, another one does not know the attach type.
func askTCX() error {
	prog, err := nothing()
	if err != nil {
		return err
	}
	defer prog.Close()
	return feature(noDevice(link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress})))
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

// Netkit needs pairs of netkit devices with programs on them (Linux 6.7, CONFIG_NETKIT).
func Netkit(t testing.TB) {
	t.Helper()
	Feature(t, "netkit", askNetkit)
}

// HasNetkit is Netkit for a test that goes on either way.
func HasNetkit(t testing.TB) bool {
	t.Helper()
	return Has(t, "netkit", askNetkit)
}

// askNetkit is askTCX for netkit.
func askNetkit() error {
	prog, err := nothing()
	if err != nil {
		return err
	}
	defer prog.Close()
	err = noDevice(link.AttachNetkit(link.NetkitOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachNetkitPeer}))
	if errors.Is(err, unix.EINVAL) {
		return errors.Join(ErrMissing, err)
	}
	return feature(err)
}

// TestRunIngress needs BPF_PROG_TEST_RUN to take the device that a packet came
// in by (ingress_ifindex of struct __sk_buff).
func TestRunIngress(t testing.TB) {
	t.Helper()
	Feature(t, "test run with ingress_ifindex", askTestRunIngress)
}

func askTestRunIngress() error {
	prog, err := nothing()
	if err != nil {
		return err
	}
	defer prog.Close()
	const loopback = 1
	var skb struct { // the beginning of struct __sk_buff
		_                       [9]uint32
		IngressIfindex, Ifindex uint32
	}
	skb.IngressIfindex = loopback
	_, err = prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: skb})
	if errors.Is(err, unix.EINVAL) {
		return ErrMissing
	}
	return err
}

// nothing is a program that does nothing.
func nothing() (*ebpf.Program, error) {
	return load(asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()})
}

func load(ins asm.Instructions) (*ebpf.Program, error) {
	// Programs are charged to the limit of locked memory before Linux 5.11; later it does not matter whether this works.
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil)
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: ins})
}

// FIBSource needs bpf_fib_lookup() to tell the source address that a route
// prefers (BPF_FIB_LOOKUP_SRC: Linux 6.7, and stable ones since).
func FIBSource(t testing.TB) {
	t.Helper()
	Feature(t, "fib lookup source address", askFIBSource)
}

// askFIBSource looks a zeroed question up with the flag: a kernel that does not
// know it answers -EINVAL before it looks at anything else.
func askFIBSource() error {
	const size, flag, loopback = 64, 1 << 4, 1 // of struct bpf_fib_lookup
	ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for off := int16(-size); off < 0; off += 4 {
		ins = append(ins, asm.StoreImm(asm.RFP, off, 0, asm.Word))
	}
	ins = append(ins,
		asm.StoreImm(asm.RFP, -size, unix.AF_INET, asm.Byte),
		asm.StoreImm(asm.RFP, -size+8, loopback, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -size),
		asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, flag), asm.FnFibLookup.Call(), asm.Return(),
	)
	prog, err := load(ins)
	if err != nil {
		return err
	}
	defer prog.Close()
	ret, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err == nil && int32(ret) == -int32(unix.EINVAL) {
		return ErrMissing
	}
	return err
}

// SocketNetns needs bpf_get_netns_cookie() in tc programs (Linux 6.15).
func SocketNetns(t testing.TB) {
	t.Helper()
	Feature(t, "namespace of a packet's socket", func() error {
		return feature(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnGetNetnsCookie))
	})
}

// ConntrackBTF needs the kernel to say where an entry of netfilter's connection table has its tuples: its own BTF
// describes it, or that of the module (Linux 5.11).
func ConntrackBTF(t testing.TB) {
	t.Helper()
	Feature(t, "BTF of netfilter's connection table", AskConntrackBTF)
}

// AskConntrackBTF is what ConntrackBTF asks: nil, or why the kernel does not say it.
func AskConntrackBTF() error {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	var entry *btf.Struct
	if spec.TypeByName("nf_conn", &entry) == nil {
		return nil
	}
	if spec, err = btf.LoadKernelModuleSpec("nf_conntrack"); err != nil {
		return errors.Join(ErrMissing, err)
	}
	return spec.TypeByName("nf_conn", &entry)
}

// feature turns the features package's definite no into ours.
func feature(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return errors.Join(ErrMissing, err)
	}
	return err
}
