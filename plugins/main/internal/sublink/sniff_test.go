// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// sniffer collects the frames that eth0 of a namespace gets.
type sniffer struct {
	fd   int
	seen [][]byte
}

func sniff(t *testing.T, ns *netlab.NS) *sniffer {
	t.Helper()
	s := &sniffer{}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // network byte order on either kind of machine we have
	if err := ns.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	return s
}

// await wants a frame that matches, among those that came and those that come.
func (s *sniffer) await(t *testing.T, what string, match func([]byte) bool) {
	t.Helper()
	for _, f := range s.seen {
		if match(f) {
			return
		}
	}
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		n, err := unix.Read(s.fd, buf)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		s.seen = append(s.seen, bytes.Clone(buf[:n]))
		if match(buf[:n]) {
			return
		}
	}
	t.Errorf("no %s among %d frames", what, len(s.seen))
}

// isGratuitousARP recognises a broadcast in which mac says that it has addr
// (RFC 5227 3: sender and target address are one).
func isGratuitousARP(f []byte, mac net.HardwareAddr, addr netip.Addr) bool {
	return len(f) >= 42 && f[0] == 0xff && f[12] == 8 && f[13] == 6 &&
		bytes.Equal(f[22:28], mac) && bytes.Equal(f[28:32], addr.AsSlice()) && bytes.Equal(f[38:42], addr.AsSlice())
}

// isUnsolicitedNA recognises a neighbour advertisement of addr by mac to all
// nodes (RFC 4861 7.2.6).
func isUnsolicitedNA(f []byte, mac net.HardwareAddr, addr netip.Addr) bool {
	all := netip.MustParseAddr("ff02::1")
	return len(f) >= 78 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 58 && f[54] == 136 &&
		bytes.Equal(f[6:12], mac) && bytes.Equal(f[38:54], all.AsSlice()) && bytes.Equal(f[62:78], addr.AsSlice())
}
