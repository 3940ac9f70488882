// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"

	"golang.org/x/sys/unix"
)

// soNetnsCookie returns the cookie of the calling thread's network namespace; 0 where the kernel does not tell (before 5.14).
func soNetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, nil // an older kernel
	}
	return cookie, nil
}

// netnsCookie returns by what programs recognise sockets of the calling thread's network namespace. Programs could ask for it
// before processes could: on such a kernel a program is asked.
func (d *Datapath) netnsCookie(ctx context.Context) (uint64, error) {
	cookie, err := soNetnsCookie()
	if err != nil || cookie != 0 {
		return cookie, err
	}
	root, err := d.cgroupRoot()
	if err != nil || root == "" {
		return 0, err
	}
	return d.opts.Loader.NetnsCookie(ctx, root)
}
