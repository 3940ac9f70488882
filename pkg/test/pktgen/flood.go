// SPDX-License-Identifier: Apache-2.0

// Package pktgen sends one frame over and over. A Flood does so faster than any socket can: by an XDP program that the kernel runs on
// frames it keeps (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), which redirects each to a device. A Socket sends socket buffers, as
// every other sender on this machine does. Both are for test namespaces only.
package pktgen

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// ErrUnsupported says that the kernel cannot do it.
var ErrUnsupported = errors.New("missing feature: XDP live frames")

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES.
const liveFrames = 1 << 1

// Flood is a sender. The caller must Close it.
type Flood struct{ prog *ebpf.Program }

// New returns a sender over the device with that index in the calling thread's network namespace. The device must be able to
// transmit XDP frames: of a veth, the other end must have an XDP program or GRO (see netlab.SetGRO).
func New(ifindex int) (*Flood, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "flood", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, int32(ifindex)),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load the sender: %w", err)
	}
	return &Flood{p}, nil
}

// Close releases the sender.
func (f *Flood) Close() error { return f.prog.Close() }

// Send sends frame n times, from the calling thread's namespace. What the other end has no room for is lost.
func (f *Flood) Send(frame []byte, n int) error {
	_, err := f.prog.Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(n), Flags: liveFrames})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// Socket is a packet socket past the queueing discipline. The caller must Close it.
type Socket struct {
	fd       int
	messages []mmsghdr
}

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// atOnce is how many frames one system call sends.
const atOnce = 64

// NewSocket returns a sender over the device with that index in the calling thread's network namespace.
func NewSocket(ifindex int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &Socket{fd: fd, messages: make([]mmsghdr, atOnce)}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex, Protocol: 0}))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close releases the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Send sends frame at least n times. What the other end has no room for is lost.
func (s *Socket) Send(frame []byte, n int) error {
	iov := unix.Iovec{Base: &frame[0]}
	iov.SetLen(len(frame))
	for i := range s.messages {
		s.messages[i].hdr.Iov = &iov
		s.messages[i].hdr.SetIovlen(1)
	}
	for sent := 0; sent < n; sent += atOnce {
		_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[0])), atOnce, 0, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS && errno != unix.EAGAIN {
			return fmt.Errorf("sendmmsg: %w", errno)
		}
	}
	runtime.KeepAlive(&iov)
	return nil
}
