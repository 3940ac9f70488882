// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// held are connections that are open and do nothing.
type held struct {
	mu  sync.Mutex
	fds []int
}

// The ports that held connections are from: each address has so many.
const (
	firstHeldPort = 10000
	heldPorts     = 50000
)

func (h *held) keep(fd int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fds = append(h.fds, fd)
}

// release closes all of them at once, without a handshake and without TIME_WAIT, and returns how many there were.
func (h *held) release() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.fds)
	for _, fd := range h.fds {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // else it closes in the usual way
		rawClose(fd)
	}
	h.fds = nil
	return n
}

// allowFiles lets this process have so many open files.
func allowFiles(n int) error {
	limit := unix.Rlimit{Cur: uint64(n) + 1000, Max: uint64(n) + 1000}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	if now.Cur >= limit.Cur {
		return nil
	}
	limit.Max = max(limit.Max, now.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d open files, and the hard limit is %d (ulimit -Hn, fs.nr_open): %w", limit.Cur, now.Max, err)
	}
	return nil
}

// open makes it n connections in all, from the addresses in turn, each port once.
func (h *held) open(to netip.AddrPort, sources []netip.Addr, n int) error {
	if n > len(sources)*heldPorts {
		return fmt.Errorf("%d connections from %d addresses, at most %d each", n, len(sources), heldPorts)
	}
	if err := allowFiles(n); err != nil {
		return err
	}
	sa := newSockaddr(to)
	for i := len(h.fds); i < n; i++ {
		from := netip.AddrPortFrom(sources[i/heldPorts], uint16(firstHeldPort+i%heldPorts))
		fd, err := dialFrom(from, sa)
		if err != nil {
			return fmt.Errorf("connection %d of %d, from %s: %w", i+1, n, from, err)
		}
		h.keep(fd)
	}
	return nil
}

// dialFrom connects and makes sure that the server has it: the kernel says that it is connected before the server accepts.
func dialFrom(from netip.AddrPort, to *sockaddr) (int, error) {
	fd, errno := newSocket(to.family)
	if errno != 0 {
		return -1, fmt.Errorf("socket: %w", errno)
	}
	one := []byte{kindHeld}
	for _, step := range []struct {
		what string
		do   func() unix.Errno
	}{
		{"bind", func() unix.Errno { return bind(fd, newSockaddr(from)) }},
		{"connect", func() unix.Errno { return connect(fd, to) }},
		{"send", func() unix.Errno { _, errno := rawWrite(fd, one); return errno }},
		{"wait for the server", func() unix.Errno {
			if n, errno := rawRead(fd, one); errno != 0 || n == 1 {
				return errno
			}
			return unix.ECONNRESET
		}},
	} {
		if errno := step.do(); errno != 0 {
			rawClose(fd)
			return -1, fmt.Errorf("%s: %w", step.what, errno)
		}
	}
	return fd, nil
}
