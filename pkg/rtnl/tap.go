// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// tunDevice is the driver's file (drivers/net/tun.c).
const tunDevice = "/dev/net/tun"

// Attributes of a tun or tap link, from <linux/if_link.h>.
const (
	tunOwner      = 1 // IFLA_TUN_OWNER
	tunGroup      = 2 // IFLA_TUN_GROUP
	tunType       = 3 // IFLA_TUN_TYPE
	tunPersist    = 6 // IFLA_TUN_PERSIST
	tunMultiQueue = 7 // IFLA_TUN_MULTI_QUEUE
)

// Tun is what is particular to a link of kind "tun".
type Tun struct {
	Tap        bool    // carries Ethernet frames
	Owner      *uint32 // uid that may open it without CAP_NET_ADMIN; nil: no user in particular
	Group      *uint32 // gid, likewise
	Persist    bool    // lives on without a process that has it open
	MultiQueue bool
}

// TapSpec describes a tap device. Only Name is required.
type TapSpec struct {
	Name         string
	Owner, Group *uint32
	MultiQueue   bool
}

// TunAvailable says whether the kernel makes tun and tap devices; the error
// wraps ErrNotSupported when it does not.
func TunAvailable() error {
	fd, err := openTun()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func openTun() (int, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("open %s: %w", tunDevice, sentinelError{ErrNotSupported, err})
	case err != nil:
		return -1, fmt.Errorf("open %s: %w", tunDevice, err)
	}
	return fd, nil
}

// AddTap makes a tap device, down, in the network namespace of the calling
// thread. It stays when no process has it open. The error wraps ErrExist when the
// name is taken, by whatever kind of link; on any error nothing is left.
func AddTap(s TapSpec) error {
	fd, err := openTun()
	if err != nil {
		return err
	}
	defer unix.Close(fd) // before TUNSETPERSIST this ends the device
	ifr, err := unix.NewIfreq(s.Name)
	if err != nil {
		return fmt.Errorf("add tap %q: %w", s.Name, err)
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if s.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = sentinelError{ErrExist, err}
		}
		return fmt.Errorf("add tap %q: %w", s.Name, err)
	}
	for _, set := range []struct {
		what string
		req  uint
		id   *uint32
	}{{"owner", unix.TUNSETOWNER, s.Owner}, {"group", unix.TUNSETGROUP, s.Group}} {
		if set.id == nil {
			continue
		}
		if err := unix.IoctlSetInt(fd, set.req, int(*set.id)); err != nil {
			return fmt.Errorf("set the %s of tap %q to %d: %w", set.what, s.Name, *set.id, err)
		}
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make tap %q persistent: %w", s.Name, err)
	}
	return nil
}

func parseTun(data []byte) (*Tun, error) {
	t := new(Tun)
	err := walk(data, func(kind uint16, v []byte) {
		switch kind {
		case tunOwner:
			t.Owner = ptr(u32(v))
		case tunGroup:
			t.Group = ptr(u32(v))
		case tunType:
			t.Tap = u8(v) == unix.IFF_TAP
		case tunPersist:
			t.Persist = u8(v) != 0
		case tunMultiQueue:
			t.MultiQueue = u8(v) != 0
		}
	})
	return t, err
}
