// SPDX-License-Identifier: Apache-2.0

// Package bpfsys is what a process needs that works with pinned maps, programs and links, and loads none: a dozen commands of
// bpf(2), each one system call. A library that also reads ELF and BTF takes longer to start than all of what an ADD asks the
// kernel's BPF side for; making maps and verifying programs is left to it, in a process that runs once per boot (loader/ebpfload).
//
// Attributes are those of union bpf_attr in <linux/bpf.h>. Errors are errnos, but for ErrNotSupported. The kernel minimum is 5.10
// unless a function names another.
package bpfsys

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotSupported: this kernel, or this type of map, does not have the command.
var ErrNotSupported = errors.New("not supported by this kernel")

// errNotSupp is ENOTSUPP of <linux/errno.h>, which the kernel should not, and does, tell processes.
const errNotSupp = unix.Errno(524)

// call is bpf(2). It never tries again: the kernel may have written to attr.
func call[A any](cmd int, attr *A) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	runtime.KeepAlive(attr)
	switch errno {
	case 0:
		return int(r), nil
	case errNotSupp:
		return 0, ErrNotSupported
	}
	return 0, errno
}

// file is a descriptor of something that the kernel holds.
type file struct{ fd int }

// FD is the descriptor, good until Close.
func (f file) FD() int { return f.fd }

// Close releases the descriptor. What is pinned or attached stays.
func (f *file) Close() error {
	fd := f.fd
	f.fd = -1 // a second Close must not close the next file that gets the number
	return unix.Close(fd)
}

type objAttr struct {
	path  pointer
	fd    uint32
	flags uint32
}

// open opens what is pinned at path. fs.ErrNotExist: nothing is.
func open(path string) (file, error) { return openWith(path, 0) }

func openWith(path string, flags uint32) (file, error) {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return file{}, err
	}
	fd, err := call(unix.BPF_OBJ_GET, &objAttr{path: pointer{p: unsafe.Pointer(p)}, flags: flags})
	if err != nil {
		return file{}, &fs.PathError{Op: "open pin", Path: path, Err: err}
	}
	return file{fd}, nil
}

// pin gives it a path on a bpffs.
func (f file) pin(path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, err := call(unix.BPF_OBJ_PIN, &objAttr{path: pointer{p: unsafe.Pointer(p)}, fd: uint32(f.fd)}); err != nil {
		return &fs.PathError{Op: "pin", Path: path, Err: err}
	}
	return nil
}

type infoAttr struct {
	fd   uint32
	size uint32
	info pointer
}

// info fills in what the kernel says about f: a struct bpf_map_info, bpf_prog_info or bpf_link_info, or its beginning.
func info[I any](f file, i *I) error {
	_, err := call(unix.BPF_OBJ_GET_INFO_BY_FD, &infoAttr{fd: uint32(f.fd), size: uint32(unsafe.Sizeof(*i)), info: pointer{p: unsafe.Pointer(i)}})
	return err
}

// KernelRelease is that of uname(2), empty if there is none.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// KernelAtLeast compares with the running kernel's version; an unreadable version counts as new.
func KernelAtLeast(major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(KernelRelease(), "%d.%d", &a, &b); err != nil {
		return true
	}
	return a > major || a == major && b >= minor
}
