// SPDX-License-Identifier: Apache-2.0

// Package file opens and reads files without the runtime's poller, which package os offers every file to. For a regular file
// that is five system calls in vain, and the first one of a process makes an epoll instance, a thread that waits on it, and
// from then on turns between threads: 2 % of an ADD. Errors are *fs.PathError as those of os. It imports none of ours.
package file

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Open is os.OpenFile. A read of a file that can block blocks a thread.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	fd, err := open(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read is os.ReadFile.
func Read(path string) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 1024)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return b, &fs.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return b, nil
		default:
			if b = b[:len(b)+n]; len(b) == cap(b) {
				b = append(b, 0)[:len(b)]
			}
		}
	}
}

func open(path string, flag int, perm fs.FileMode) (int, error) {
	for {
		fd, err := unix.Open(path, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
