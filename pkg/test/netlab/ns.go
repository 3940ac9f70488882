// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NS is a network namespace, with the mount namespace that belongs to it where
// there is one (the node and its pods). It lives as long as one of: this value
// until Close, a thread or process inside, a pod's path in the node.
type NS struct {
	// Name is for messages only, except that it is the last element of a pod's
	// Path.
	Name string

	net, mnt *os.File
}

// Do runs f on a fresh OS thread inside the namespace. Processes that f starts
// inherit it, sockets that f opens belong to it for good. f must not start
// goroutines that rely on the namespace. Concurrent calls are fine.
func (n *NS) Do(f func() error) error {
	if n.net == nil {
		return fmt.Errorf("%s: %w", n.Name, os.ErrClosed)
	}
	return onFreshThread(func() error {
		if err := enter(n.net, n.mnt); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		return f()
	})
}

// Inode returns the namespace's number in nsfs, which tells two apart.
func (n *NS) Inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(n.net.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat namespace %s: %w", n.Name, err)
	}
	return st.Ino, nil
}

// ProcPath names the network namespace for processes of the host's mount
// namespace while this one runs: /proc/<pid>/fd/<n>.
func (n *NS) ProcPath() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.net.Fd())
}

// Close drops this value's hold on the namespace. It does not end what runs in
// it. Closing twice is fine.
func (n *NS) Close() error {
	var errs []error
	for _, f := range []**os.File{&n.net, &n.mnt} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// NewNetns makes a network namespace in the caller's mount namespace, loopback
// up. The caller must Close it.
func NewNetns(name string) (*NS, error) {
	n := &NS{Name: name}
	err := onFreshThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		f, err := openThreadNS("net")
		if err != nil {
			return err
		}
		n.net = f
		return linkUp("lo")
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(err, n.Close()))
	}
	return n, nil
}

// Pod is an empty network namespace with a path inside the node, as a runtime
// makes one before it calls ADD.
type Pod struct {
	*NS
	// Path is what to pass as CNI_NETNS: /run/netns/<name> in the node.
	Path string

	node *Node
}

// NewPod makes a network namespace and binds it to /run/netns/<name> in the
// node. Loopback is left down, as a runtime does: that is a plugin's business.
func (n *Node) NewPod(name string) (*Pod, error) {
	if name == "" || name != filepath.Base(name) {
		return nil, fmt.Errorf("pod name %q is not a file name", name)
	}
	p := &Pod{NS: &NS{Name: name}, Path: filepath.Join(netnsDir, name), node: n}
	err := n.Do(func() error {
		f, err := os.OpenFile(p.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
		if err != nil {
			return err
		}
		_ = f.Close()
		if err := p.create(); err != nil {
			return errors.Join(err, os.Remove(p.Path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, errors.Join(err, p.NS.Close()))
	}
	return p, nil
}

// create runs on a thread of the node, which it takes into the new namespace.
func (p *Pod) create() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare network namespace: %w", err)
	}
	if p.net, err = openThreadNS("net"); err != nil {
		return err
	}
	if p.mnt, err = openThreadNS("mnt"); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", p.Path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind to %s: %w", p.Path, err)
	}
	return nil
}

// Delete removes the path and this value's hold, as a runtime that takes the
// sandbox down. With nothing else inside, the namespace and its devices are
// gone soon after. A path or a node that is gone already is fine.
func (p *Pod) Delete() error {
	if p.node.net == nil {
		return p.NS.Close()
	}
	errs := []error{p.node.Do(func() error {
		if err := unix.Unmount(p.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", p.Path, err)
		}
		if err := os.Remove(p.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})}
	return errors.Join(append(errs, p.NS.Close())...)
}
