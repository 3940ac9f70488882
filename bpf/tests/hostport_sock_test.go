// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// hostSocket opens a socket of the node: bound to local, and connected (for TCP:
// connecting, no answer came) if remote is valid, else listening.
func (n *node) hostSocket(proto int, local, remote netip.AddrPort) (closeSock func(), err error) {
	kind := unix.SOCK_DGRAM
	if proto == tcp {
		kind = unix.SOCK_STREAM
	}
	domain := unix.AF_INET
	if local.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd := -1
	err = n.do(func() error {
		if fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(local)); err != nil {
			return err
		}
		if remote.IsValid() {
			if err := unix.Connect(fd, sockaddr(remote)); err != nil && err != unix.EINPROGRESS {
				return err
			}
			return nil
		}
		if proto == tcp {
			return unix.Listen(fd, 1)
		}
		return nil
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return sync.OnceFunc(func() { unix.Close(fd) }), nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func (w *walk) mustHostSocket(proto int, local, remote netip.AddrPort) (closeSock func()) {
	w.tb.Helper()
	c, err := w.hostSocket(proto, local, remote)
	if err != nil {
		w.tb.Fatalf("socket of the node on %s: %v", local, err)
	}
	return c
}

// A connection that the node itself has from a published port is the node's.
func TestPrivilegedHostPortHostSocket(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		done := w.mustHostSocket(proto, j.outside.local, j.outside.remote)
		defer done()
		j.ignored("SA")
		j.ignored("PA")
		w.wantFlows(0, 0)
		// Another client of the port does not care.
		k := *j
		k.inside.remote, k.outside.remote = at(client(family), clientPort+1), at(client(family), clientPort+1)
		k.in("PA")
		k.out("PA")
		k.inFast("PA")
		done()
		j.in("PA")
	})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		if proto != tcp {
			return
		}
		// As with DNAT, a SYN is for the hostPort.
		j := w.toHostPort(family, proto, podA)
		defer w.mustHostSocket(proto, j.outside.local, j.outside.remote)()
		j.in("S")
	})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		// A socket that only listens does not keep packets from the hostPort.
		j := w.toHostPort(family, proto, podA)
		defer w.mustHostSocket(proto, j.outside.local, netip.AddrPort{})()
		j.in("PA")
		j.out("PA")
		j.inFast("PA")
	})
}

// A checksum of 0 says that there is none: it stays 0. Not in the state
// CHECKSUM_COMPLETE: a port that changes without a checksum that makes up for it
// leaves the sum over the packet wrong, in netfilter's translation as in ours, and
// UDP does not look at it.
func TestPrivilegedHostPortNoUDPChecksum(t *testing.T) {
	fx := newFixture(t, nil)
	fx.modes = fx.modes[:1]
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.noSum = true
			j.in("")
			j.out("")
			j.inFast("")
			j.outFast("")
			j = w.opens(family, udp, podA, movedPort, rolled(3))
			j.noSum = true
			w.rolls(3)
			j.answered()
		}, masquerading(podA), publishing(mapping(family, udp, podA)))
	}
}

// In that state too the sum is right where addresses alone change: an IPv4 header makes up for itself, and the sum follows an IPv6 one.
func TestPrivilegedHostPortNoUDPChecksumSamePort(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		m := mapping(family, udp, podA)
		m.port = hostPort
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.inside = j.inside.as(at(podA.addr(family), hostPort))
			j.noSum = true
			j.in("")
			j.out("")
			j.inFast("")
			j.outFast("")
			j = w.opens(family, udp, podA, keptPort, keptPort)
			j.noSum = true
			j.answered()
		}, masquerading(podA), publishing(m))
	}
}

// A checksum that a translation makes 0 is written as 0xffff, or it would say "none".
func TestPrivilegedHostPortZeroUDPChecksum(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			f := j.outside.rx("")
			f.srcMAC, f.dstMAC = upl0.router, upl0.mac
			g := j.inside.rx("")
			g.srcMAC, g.dstMAC = f.srcMAC, f.dstMAC
			f.payload = zeroing(t, g)
			g.payload = f.payload
			out := g.bytes(t)
			if p := read(out); binary.BigEndian.Uint16(out[p.sumOffset():]) != 0xffff {
				t.Fatalf("the payload does not bring the checksum to 0: %x", out[p.sumOffset():])
			}
			w.step(uplIngress, "upl0", f.bytes(t), passes(out))
		}, publishing(mapping(family, udp, podA)))
	}
}

// zeroing returns a payload with which the UDP checksum of f comes out as 0.
func zeroing(tb testing.TB, f frame) []byte {
	tb.Helper()
	f.payload = []byte{0, 0, 'x', 'y'}
	raw := f.bytes(tb)
	p := read(raw)
	payload := []byte{0, 0, 'x', 'y'}
	copy(payload, raw[p.sumOffset():p.sumOffset()+2])
	return payload
}

// IP options move the ports: the translation finds them. Such a packet is for the stack, which refuses source routes and answers alerts.
func TestPrivilegedHostPortIPOptions(t *testing.T) {
	fx := newFixture(t, nil)
	options := map[string][]byte{
		"nop":    {1, 1, 1, 0},
		"record": append([]byte{7, 39, 4}, make([]byte, 37)...), // record route, 40 bytes: the longest header
	}
	for name, o := range options {
		for _, p := range protocols[:2] {
			fx.each(t, name+"/"+p.name, func(w *walk) {
				j := w.toHostPort(4, p.proto, podA)
				j.options = o
				j.in("S")
				j.out("SA")
				j.in("A")
				j.out("PA")
				j.options = nil
				j.inFast("A")
				j.outFast("PA")
				j.options = o
				j.in("PA")
				j.out("PA")
			}, publishing(mapping(4, p.proto, podA)))
		}
	}
}
