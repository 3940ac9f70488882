// SPDX-License-Identifier: Apache-2.0

// Package podns is what the chained plugins that work inside a pod's network
// namespace have in common: getting there, and finding it again later. It owns no state.
package podns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Pod is a pod's network namespace and a handle in it.
type Pod struct {
	*rtnl.Handle
	NS *netns.NS

	lock *os.File
}

// Open opens the namespace at path; errors have code 8. The caller must Close
// the result.
func Open(path string) (*Pod, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", path)
	}
	return enter(ns)
}

func enter(ns *netns.NS) (*Pod, error) {
	h, err := rtnl.NewIn(ns)
	if err != nil {
		ns.Close()
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	return &Pod{Handle: h, NS: ns}, nil
}

// Reopen is Open for the first of the paths that is there and the namespace that
// is meant (see netns.Reopen). It returns nil without an error when none is.
func Reopen(inode uint64, paths ...string) (*Pod, error) {
	ns, err := netns.Reopen(inode, paths...)
	if ns == nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	return enter(ns)
}

// Lock keeps other calls that lock out of the namespace until Close: they look for
// free numbers and then take them. It waits as long as ctx lasts (code 11). The lock
// is a file beside the records, by the namespace's inode, which no pod can open.
//
// Upstream's sbr plugin locks the namespace itself. Lock takes that lock too where it
// is free, so that upstream's waits. It does not wait for it: any process that can
// open the namespace can hold it, the pod's own included. Where the run directory is
// read-only, that lock is the only one.
func (p *Pod) Lock(ctx context.Context, records *attachments.Dir) error {
	if err := os.MkdirAll(records.Path(), 0o700); err != nil && !errors.Is(err, unix.EROFS) {
		return cnierr.Wrap(cnierr.CodeState, err, "lock CNI_NETNS %q", p.NS.Path())
	}
	f, err := file.AcquireLock(ctx, LockPath(records, p.NS.Inode()))
	if cause := ctx.Err(); err != nil && cause != nil {
		return cnierr.Wrap(cnierr.CodeTryAgain, cause, "another call of sbr or vrf works in CNI_NETNS %q", p.NS.Path())
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "lock CNI_NETNS %q", p.NS.Path())
	}
	p.lock = f
	_ = unix.Flock(p.NS.Fd(), unix.LOCK_EX|unix.LOCK_NB)
	return nil
}

// LockPath is the lock file of the namespace with that inode. It exists while a call
// has the lock.
func LockPath(records *attachments.Dir, inode uint64) string {
	return filepath.Join(records.Path(), fmt.Sprintf(".netns-%d.lock", inode))
}

// LockForDel is Lock for a DEL. If the run directory is full, there is no lock: the pod goes with the DEL, so the worst is a number that another ADD of
// the same pod finds taken.
func (p *Pod) LockForDel(ctx context.Context, l *log.Logger, records *attachments.Dir) error {
	err := p.Lock(ctx, records)
	if file.IsFull(err) {
		l.Warn("no lock for the pod's network namespace", log.Error(err))
		return nil
	}
	return err
}

// Close releases the descriptors. A nil Pod is fine.
func (p *Pod) Close() {
	if p != nil {
		p.Handle.Close()
		p.NS.Close()
		if p.lock != nil {
			_ = os.Remove(p.lock.Name()) // "" if the file could not be made; before the lock goes: who waits for it looks whether the file is still there
			_ = p.lock.Close()
		}
	}
}
