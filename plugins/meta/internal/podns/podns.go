// SPDX-License-Identifier: Apache-2.0

// Package podns is what the chained plugins that work inside a pod's network
// namespace have in common: getting there, and finding it again later. It owns no state.
package podns

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/filelock"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Pod is a pod's network namespace and a handle in it.
type Pod struct {
	*rtnl.Handle
	NS *netns.NS
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

// Lock keeps other calls that lock, upstream's sbr plugin included, out of
// the namespace until Close: they look for free numbers and then take them. It
// waits as long as ctx lasts (code 11), not longer: a process that can open the namespace
// can lock it, the pod's own processes included.
func (p *Pod) Lock(ctx context.Context) error {
	fd, err := unix.FcntlInt(uintptr(p.NS.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "lock CNI_NETNS %q", p.NS.Path())
	}
	f := os.NewFile(uintptr(fd), p.NS.Path())
	err = filelock.Lock(ctx, f)
	if cause := ctx.Err(); err != nil && cause != nil {
		return cnierr.Wrap(cnierr.CodeTryAgain, cause, "another process holds the lock of CNI_NETNS %q", p.NS.Path())
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "lock CNI_NETNS %q", p.NS.Path())
	}
	_ = f.Close() // a copy: the lock is the namespace's open file
	return nil
}

// Close releases the descriptors. A nil Pod is fine.
func (p *Pod) Close() {
	if p != nil {
		p.Handle.Close()
		p.NS.Close()
	}
}
