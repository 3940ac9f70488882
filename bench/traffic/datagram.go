// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Greet opens a UDP flow from a port of this namespace: it returns when a datagram has been answered.
func Greet(to netip.AddrPort, from uint16) error {
	sa := newSockaddr(to)
	fd, err := unix.Socket(sa.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer rawClose(fd)
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	local := map[int]netip.Addr{unix.AF_INET: any4, unix.AF_INET6: any6}[sa.family]
	if errno := bind(fd, newSockaddr(netip.AddrPortFrom(local, from))); errno != 0 {
		return fmt.Errorf("bind port %d: %w", from, errno)
	}
	if errno := connect(fd, sa); errno != 0 {
		return fmt.Errorf("connect: %w", errno)
	}
	return greet(fd)
}

// serveDatagrams opens a port, and answers a datagram of one byte. Others stay where they are most of the time: what is counted
// is what arrives, and a reader would take CPU time from what brings it.
func serveDatagrams(addr netip.AddrPort) error {
	to := newSockaddr(addr)
	fd, err := unix.Socket(to.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if errno := bind(fd, to); errno != 0 {
		return fmt.Errorf("bind %s: %w", addr, errno)
	}
	go answer(fd)
	return nil
}

func answer(fd int) {
	for buf := make([]byte, 64); ; time.Sleep(20 * time.Millisecond) {
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				break
			}
			if n == 1 {
				_ = unix.Sendto(fd, buf[:n], 0, from) // else it is asked again
			}
		}
	}
}

// greet sends a datagram of one byte until it is answered.
func greet(fd int) error {
	wait := unix.NsecToTimeval(int64(200 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	buf := make([]byte, 1)
	for range 50 {
		if _, errno := rawWrite(fd, buf); errno != 0 && errno != unix.ECONNREFUSED {
			return fmt.Errorf("send: %w", errno)
		}
		if n, errno := rawRead(fd, buf); errno == 0 && n == 1 {
			return nil
		}
	}
	return errors.New("no datagram is answered")
}

// delivered is how many packets of IPv4 this namespace has got for its own sockets.
func delivered() (uint64, error) {
	raw, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if fields[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "InDelivers" {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, errors.New("no InDelivers in snmp")
}
