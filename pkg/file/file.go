// SPDX-License-Identifier: Apache-2.0

// Package file opens and reads files without the runtime's poller, which package os offers every file to. For a regular file
// that is five system calls in vain, and the first one of a process makes an epoll instance, a thread that waits on it, and
// from then on turns between threads: 2 % of an ADD. Errors are *fs.PathError as those of os. It imports none of ours.
package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"

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

// NoRoom reports whether a write failed since the file system, or somebody's share of it, is full.
func NoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Overwrite puts content into a file that is there, in one call and without making it shorter, which takes no room: for what must
// succeed on a file system that is full. What is left of the old content becomes spaces. Content that is longer is an error.
func Overwrite(path string, content []byte) error {
	f, err := Open(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := f.Stat()
	if err != nil {
		return err
	}
	spare := int(old.Size()) - len(content)
	if spare < 0 {
		return &fs.PathError{Op: "overwrite", Path: path, Err: unix.ENOSPC}
	}
	_, err = f.WriteAt(slices.Concat(content, bytes.Repeat([]byte(" "), spare)), 0)
	return err
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
