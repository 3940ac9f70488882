// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The sockets here are blocking and used through raw system calls, so that one
// request is two system calls and two context switches, as in a C program. With
// the net package the netpoller and the goroutine scheduler would add several
// microseconds to each, with a spread that hides what is measured. The price:
// a blocked thread holds its Go processor, so Setup raises GOMAXPROCS and the
// process runs with asyncpreemptoff=1 (see Env).

// ioTimeout bounds every blocking call, so that a lost reply is an error and
// not a hang.
const ioTimeout = 5 * time.Second

func rawRead(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func rawWrite(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func rawAccept(fd int) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func rawClose(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// sockaddr is an address in the kernel's form, made once and used for many
// connections.
type sockaddr struct {
	family int
	raw    [unix.SizeofSockaddrInet6]byte
	len    int
}

func newSockaddr(a netip.AddrPort) *sockaddr {
	s := &sockaddr{}
	port := [2]byte{byte(a.Port() >> 8), byte(a.Port())}
	if a.Addr().Is4() {
		s.family, s.len = unix.AF_INET, unix.SizeofSockaddrInet4
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		in.Family, in.Addr = unix.AF_INET, a.Addr().As4()
		copy((*[2]byte)(unsafe.Pointer(&in.Port))[:], port[:])
		return s
	}
	s.family, s.len = unix.AF_INET6, unix.SizeofSockaddrInet6
	in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.raw))
	in.Family, in.Addr = unix.AF_INET6, a.Addr().As16()
	copy((*[2]byte)(unsafe.Pointer(&in.Port))[:], port[:])
	return s
}

// dial opens a connected TCP socket with TCP_NODELAY and I/O timeouts.
func dial(to *sockaddr) (int, error) {
	fd, errno := newSocket(to.family)
	if errno != 0 {
		return -1, fmt.Errorf("socket: %w", errno)
	}
	if errno := connect(fd, to); errno != 0 {
		rawClose(fd)
		return -1, fmt.Errorf("connect: %w", errno)
	}
	return fd, nil
}

func newSocket(family int) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	if errno := setOptions(int(fd)); errno != 0 {
		rawClose(int(fd))
		return -1, errno
	}
	return int(fd), 0
}

func connect(fd int, to *sockaddr) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len))
	return errno
}

func bind(fd int, to *sockaddr) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len))
	return errno
}

var ioTimeval = unix.NsecToTimeval(int64(ioTimeout))

// setOptions sets TCP_NODELAY and the timeouts of a connection.
func setOptions(fd int) unix.Errno {
	one := int32(1)
	if errno := setsockopt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, unsafe.Pointer(&one), unsafe.Sizeof(one)); errno != 0 {
		return errno
	}
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if errno := setsockopt(fd, unix.SOL_SOCKET, opt, unsafe.Pointer(&ioTimeval), unsafe.Sizeof(ioTimeval)); errno != 0 {
			return errno
		}
	}
	return 0
}

// setCongestionControl gives a connection the kernel's default algorithm. A
// host may be set to another one and hands that on to new namespaces: BBR
// paces, and on a veth its throughput jumps between two levels. Reno is what
// every kernel has.
func setCongestionControl(fd int) error {
	err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	if err != nil {
		err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	}
	if err != nil {
		return fmt.Errorf("set congestion control: %w", err)
	}
	return nil
}

func setsockopt(fd, level, opt int, p unsafe.Pointer, size uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p), size, 0)
	return errno
}
