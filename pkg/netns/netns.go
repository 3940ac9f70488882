// SPDX-License-Identifier: Apache-2.0

// Package netns opens Linux network namespaces and runs functions inside them.
//
// A network namespace belongs to a thread, a goroutine does not: every entry therefore happens in a fresh goroutine that is
// locked to its thread, and a thread that could not be moved back is thrown away instead of being handed to other goroutines.
// The package owns the file descriptor of an NS until Close. It never creates or names namespaces; the runtime does.
package netns

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotExist says that nothing is at the path, or that the process whose namespace it named has gone. DEL treats it as done.
	ErrNotExist = errors.New("network namespace does not exist")
	// ErrNotNS says that the path holds something that is not a network namespace (a plain file, a mount namespace).
	ErrNotNS = errors.New("not a network namespace")
)

// ownPath names the namespace of the calling thread, which may differ from that of the process.
const ownPath = "/proc/thread-self/ns/net"

// NS is an open network namespace. It keeps the namespace alive until Close, even when its path goes.
type NS struct {
	path string
	fd   int
	dev  uint64
	ino  uint64
	once sync.Once
}

// Open opens the network namespace at path (a bind mount or /proc/PID/ns/net). The error wraps ErrNotExist or ErrNotNS where
// one of them says what is wrong. The caller must Close the result.
func Open(path string) (*NS, error) {
	// Without O_NONBLOCK a FIFO at the path would block the plugin until a writer opens it.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESRCH):
			return nil, fmt.Errorf("open %q: %w: %w", path, ErrNotExist, err)
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // a socket or a device file
			return nil, fmt.Errorf("open %q: %w: %w", path, ErrNotNS, err)
		}
		return nil, fmt.Errorf("open network namespace %q: %w", path, err)
	}
	n, err := fromFd(path, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return n, nil
}

// Reopen opens the first of the paths that is a network namespace and, unless inode is 0, the one with that number: a path may
// name another pod's by now. Empty paths are passed over. It returns nil without an error when there is none.
func Reopen(inode uint64, paths ...string) (*NS, error) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		n, err := Open(path)
		switch {
		case errors.Is(err, ErrNotExist), errors.Is(err, ErrNotNS):
		case err != nil:
			return nil, err
		case inode != 0 && n.ino != inode:
			n.Close()
		default:
			return n, nil
		}
	}
	return nil, nil // "gone" is an answer, and no error
}

// Current opens the network namespace of the calling thread. The caller must Close the result.
func Current() (*NS, error) { return Open(ownPath) }

func fromFd(path string, fd int) (*NS, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("statfs %q: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("%q: %w", path, ErrNotNS)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return nil, fmt.Errorf("%q: %w", path, ErrNotNS)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %q: %w", path, err)
	}
	return &NS{path: path, fd: fd, dev: uint64(st.Dev), ino: st.Ino}, nil //nolint:unconvert // 32 bits on some architectures
}

// Path returns the path given to Open.
func (n *NS) Path() string { return n.path }

// Fd returns the descriptor, valid until Close; for IFLA_NET_NS_FD and setns.
func (n *NS) Fd() int { return n.fd }

// Inode returns the namespace's number as shown by lsns, unique while the namespace lives.
func (n *NS) Inode() uint64 { return n.ino }

// Close releases the descriptor. Further calls do nothing.
func (n *NS) Close() {
	n.once.Do(func() {
		_ = unix.Close(n.fd)
		n.fd = -1
	})
}

// Same reports whether a and b are one namespace, whatever paths they were opened by.
func Same(a, b *NS) (bool, error) {
	if a == nil || b == nil {
		return false, errors.New("compare network namespaces: nil namespace")
	}
	return a.dev == b.dev && a.ino == b.ino, nil
}

// Do runs f with the calling thread inside n and waits for it. Goroutines that f starts are not inside n.
// The error is f's own, or says why the namespace could not be entered. A panic of f is raised again in the caller.
func (n *NS) Do(f func() error) error {
	var (
		err      error
		panicked any
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		restored := false
		err = n.inside(func() error {
			defer func() { panicked = recover() }()
			return f()
		}, &restored)
		if restored {
			runtime.UnlockOSThread()
		}
		// Else: still locked at exit, so the runtime ends the thread, which is in the wrong namespace.
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// inside enters n, calls f and goes back; *restored tells whether the thread is where it was.
func (n *NS) inside(f func() error, restored *bool) error {
	origin, err := unix.Open(ownPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		*restored = true
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer unix.Close(origin)
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		*restored = true
		return fmt.Errorf("enter network namespace %q: %w", n.path, err)
	}
	err = f()
	*restored = unix.Setns(origin, unix.CLONE_NEWNET) == nil
	return err
}
