// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// held are connections that are open and do nothing.
type held struct {
	mu      sync.Mutex
	fds     []int
	room    int // how many this process may have, and each keeper
	keepers []*keeper
	passed  int // how many the keepers have
}

// otherFiles is how many files a process may need beside connections.
const otherFiles = 1000

// The ports that held connections are from: each address has so many.
const (
	firstHeldPort = 10000
	heldPorts     = 50000
)

// allow makes room for n connections: in this process, if its limit of open files can be raised so far, else in keepers.
func (h *held) allow(n int) error {
	limit, err := allowFiles(n + otherFiles)
	if err != nil {
		return err
	}
	return h.share(n, limit-otherFiles)
}

// share makes room for n connections, no more than room of them in one process.
func (h *held) share(n, room int) error {
	if room <= 0 {
		return fmt.Errorf("%d open files are too few (ulimit -Hn)", room+otherFiles)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.room = room
	for (len(h.keepers)+1)*room < n {
		k, err := startKeeper()
		if err != nil {
			return err
		}
		h.keepers = append(h.keepers, k)
	}
	return nil
}

// keep holds a connection. answer is sent on it first, so that who has the answer finds it held.
func (h *held) keep(fd int, answer []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(answer) > 0 {
		if _, errno := rawWrite(fd, answer); errno != 0 {
			rawClose(fd)
			return errno
		}
	}
	if len(h.fds) < h.room {
		h.fds = append(h.fds, fd)
		return nil
	}
	if h.passed >= len(h.keepers)*h.room {
		rawClose(fd)
		return fmt.Errorf("%d connections are held, and there is room for no more", len(h.fds)+h.passed)
	}
	if err := h.keepers[h.passed/h.room].pass(fd); err != nil {
		return fmt.Errorf("pass a connection on: %w", err)
	}
	h.passed++
	return nil
}

func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.fds) + h.passed
}

// release closes all of them and returns how many there were.
func (h *held) release() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.fds) + h.passed
	closeAll(h.fds)
	var errs []error
	for _, k := range h.keepers {
		errs = append(errs, k.release())
	}
	h.fds, h.keepers, h.passed = nil, nil, 0
	return n, errors.Join(errs...)
}

// allowFiles lets this process have so many open files, or as many as it can. It returns how many those are.
func allowFiles(n int) (int, error) {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return 0, fmt.Errorf("getrlimit: %w", err)
	}
	want := unix.Rlimit{Cur: max(uint64(n), now.Cur), Max: max(uint64(n), now.Max)}
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &want)
	if errors.Is(err, unix.EPERM) { // without CAP_SYS_RESOURCE, or beyond fs.nr_open
		want = unix.Rlimit{Cur: now.Max, Max: now.Max}
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &want)
	}
	if err != nil {
		return 0, fmt.Errorf("allow %d open files: %w", want.Cur, err)
	}
	return int(want.Cur), nil
}

// open makes it n connections in all, from the addresses in turn, each port once.
func (h *held) open(to netip.AddrPort, sources []netip.Addr, n int) error {
	if n > len(sources)*heldPorts {
		return fmt.Errorf("%d connections from %d addresses, at most %d each", n, len(sources), heldPorts)
	}
	if err := h.allow(n); err != nil {
		return err
	}
	sa := newSockaddr(to)
	for i := h.count(); i < n; i++ {
		from := netip.AddrPortFrom(sources[i/heldPorts], uint16(firstHeldPort+i%heldPorts))
		fd, err := dialFrom(from, sa)
		if err != nil {
			return fmt.Errorf("connection %d of %d, from %s: %w", i+1, n, from, err)
		}
		if err := h.keep(fd, nil); err != nil {
			return err
		}
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
