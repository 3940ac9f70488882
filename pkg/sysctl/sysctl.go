// SPDX-License-Identifier: Apache-2.0

// Package sysctl reads and writes kernel parameters of the calling thread's
// network namespace. /proc/sys/net shows the namespace of the thread that
// opens the file, so callers run inside netns.NS.Do. It imports only pkg/file
// of ours.
package sysctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is where the kernel shows its parameters.
const Root = "/proc/sys"

// HostNet is where a container whose Root is read-only may have the net keys of the kernel again: the node agent's. Its network namespace
// decides whose keys they are, as below Root.
const HostNet = "/run/host/proc/sys/net"

// Path returns the file of a key. Keys are relative to Root and separated by
// slashes ("net/ipv4/conf/eth0.100/rp_filter": names may hold dots). A key
// that leads out of Root is an error.
func Path(key string) (string, error) {
	p := path.Join(Root, key)
	if !strings.HasPrefix(p, Root+"/") {
		return "", fmt.Errorf("sysctl %q is outside %s", key, Root)
	}
	return p, nil
}

// Get returns the value of a key without the final newline. The error wraps
// fs.ErrNotExist when this kernel or this interface does not have the key.
func Get(key string) (string, error) {
	p, err := Path(key)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(p, os.O_RDONLY, 0)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return read(f)
}

func read(f *os.File) (string, error) {
	b, err := io.ReadAll(f)
	_ = f.Close()
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// Dir is a directory of keys, kept open: see setOpen for why. It stays in the
// network namespace it was opened in. The caller must Close it.
type Dir struct {
	key string
	fd  int
}

// OpenDir opens a directory of keys ("net/ipv4") as the calling thread sees it.
func OpenDir(key string) (*Dir, error) {
	p, err := Path(key)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open sysctl directory: %w", &fs.PathError{Op: "open", Path: p, Err: err})
	}
	return &Dir{key: key, fd: fd}, nil
}

// Get is the package's Get for a name in the directory.
func (d *Dir) Get(name string) (string, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", &fs.PathError{Op: "open", Path: path.Join(Root, d.key, name), Err: err})
	}
	return read(os.NewFile(uintptr(fd), name))
}

// Close releases the directory.
func (d *Dir) Close() { _ = unix.Close(d.fd) }

// Set gives a key a value. It does not write when the kernel has the value
// already: some keys have effects on every write (disable_ipv6 flushes
// addresses), and a read-only /proc/sys is then no obstacle.
func Set(key, value string) error {
	p, err := Path(key)
	if err != nil {
		return err
	}
	if done := setOpen(p, value); done {
		return nil
	}
	// Write-only keys (route/flush) cannot be read; the write decides.
	if old, err := Get(key); err == nil && Equal(old, value) {
		return nil
	}
	return write(p, value)
}

// Apply is Set for who wants what a write does: one to a key of all devices
// ("net/ipv6/conf/all/disable_ipv6") takes the value to each of them, also when
// the key itself has it already. Only a key that cannot be written is left alone
// when it has the value.
func Apply(key, value string) error {
	p, err := Path(key)
	if err != nil {
		return err
	}
	if err = write(p, value); err == nil {
		return nil
	}
	if old, gerr := Get(key); gerr == nil && Equal(old, value) {
		return nil
	}
	return err
}

func write(path, value string) error {
	// No O_TRUNC or O_CREATE: a key that does not exist must stay an error.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if key, ok := strings.CutPrefix(path, Root+"/net/"); ok && errors.Is(err, unix.EROFS) {
		if host, herr := os.OpenFile(HostNet+"/"+key, os.O_WRONLY, 0); herr == nil {
			f, err = host, nil
		}
	}
	if err != nil {
		return fmt.Errorf("write sysctl: %w", err)
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write sysctl: %w", err)
	}
	return nil
}

// setOpen reads and writes by one descriptor: finding the file is what takes
// time, more with every network namespace on the node (the kernel keeps the
// names of all in one chain). Where that does not work, Set says why.
func setOpen(path, value string) bool {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var old [128]byte
	n, err := unix.Pread(fd, old[:], 0)
	if err != nil || n == len(old) {
		return false
	}
	if Equal(string(old[:n]), value) {
		return true
	}
	n, err = unix.Pwrite(fd, []byte(value), 0)
	return err == nil && n == len(value)
}

// Equal compares two values as the kernel does: fields, however they are
// separated ("4096 87380 6291456" is shown with tabs).
func Equal(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}
