// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"golang.org/x/sys/unix"
)

// SoNetnsCookie returns the cookie of the calling thread's network namespace; 0 where the kernel does not tell (before 5.14).
func SoNetnsCookie() (uint64, error) {
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
