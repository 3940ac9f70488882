// SPDX-License-Identifier: Apache-2.0

package socklb

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// peerOf is the address that getpeername(2) says.
func peerOf(sa unix.Sockaddr) netip.AddrPort {
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// A datagram socket that has been connected through a published port, and then to the pod itself, is one of the pod's own: that is
// what it is told, and it stays when the port goes.
func TestPrivilegedLocalConnectedAgain(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		old := w.AddPod(rt, "old"+fam.Suffix, e2etest.UDP(8080, 80))
		defer old.MustDel()
		e2etest.Serve(t, old, "old", ":80")
		published := netip.AddrPortFrom(fam.Loopback(), 8080)
		direct := netip.AddrPortFrom(fam.Pod(old), 80)
		var f *os.File
		err := w.Node.Do(func() error {
			domain := unix.AF_INET
			if direct.Addr().Is6() {
				domain = unix.AF_INET6
			}
			fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			f = os.NewFile(uintptr(fd), "again")
			for _, to := range []netip.AddrPort{published, direct} {
				if err := unix.Connect(fd, e2etest.Sockaddr(to)); err != nil {
					return err
				}
				sa, err := unix.Getpeername(fd)
				if err != nil {
					return err
				}
				if got := peerOf(sa); got != to {
					t.Errorf("connected to %s, the peer is said to be %s", to, got)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		next := w.AddPod(rt, "new"+fam.Suffix, e2etest.UDP(8080, 80)) // takes the port over
		defer next.MustDel()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		e2etest.AssertTalk(t, c, "old")
	})
}

// A datagram socket without a peer that has sent to a published port, and then to the pod itself, is answered by the pod.
func TestPrivilegedLocalSentAgain(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		pc, err := w.Node.ListenPacket("udp"+fam.Suffix, net.JoinHostPort(fam.Any, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(fam.Loopback(), 8080), netip.AddrPortFrom(fam.Pod(web), 80), netip.AddrPortFrom(fam.Loopback(), 8080),
		} {
			_, sendErr := pc.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(to))
			deadlineErr := pc.SetDeadline(time.Now().Add(e2etest.AnswerTimeout))
			_, from, err := pc.ReadFrom(make([]byte, 512))
			if err := errors.Join(sendErr, deadlineErr, err); err != nil {
				t.Fatal(err)
			}
			if from.String() != to.String() {
				t.Errorf("asked %s, answered from %s", to, from)
			}
		}
	})
}
