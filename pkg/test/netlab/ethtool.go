// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Commands of <linux/ethtool.h>.
const (
	ethtoolSetTxCsum   = 0x17
	ethtoolSetGRO      = 0x2c
	ethtoolSetChannels = 0x3d
)

// ethtool sends a command about a device of the calling thread's namespace. words are what follows the command in its struct.
func ethtool(dev string, command uint32, words ...uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := append([]uint32{command}, words...)
	request := struct { // struct ifreq, which the kernel copies whole
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value[0])}
	copy(request.name[:unix.IFNAMSIZ-1], dev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("ethtool command %#x of %s: %w", command, dev, errno)
	}
	return nil
}

// SetGRO turns generic receive offload of a device of the calling thread's namespace on or off. On a veth it also makes the
// device poll, as hardware does, and so take XDP frames (Linux 5.13).
func SetGRO(dev string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return ethtool(dev, ethtoolSetGRO, value)
}

// WithoutTxChecksums makes a device of the calling thread's namespace send whole checksums, as hardware without offload does.
func WithoutTxChecksums(dev string) error { return ethtool(dev, ethtoolSetTxCsum, 0) }

// SetQueues gives all veths of the calling thread's namespace n queues in each direction. The kernel makes one unless it is asked; it has
// room for as many as the machine has processors (Linux 5.17).
func SetQueues(n int) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if l.Type() == "veth" {
			// struct ethtool_channels: the most of rx, tx, other and combined, which the kernel ignores, then the counts.
			errs = append(errs, ethtool(l.Attrs().Name, ethtoolSetChannels, 0, 0, 0, 0, uint32(n), uint32(n), 0, 0))
		}
	}
	return errors.Join(errs...)
}
