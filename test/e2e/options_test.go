// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Of <linux/udp.h>.
const (
	udpNoCheck6TX = 101
	udpNoCheck6RX = 102
)

// oddSockets make packets of shapes that the first parser leaves to the second one, or that have no UDP checksum.
var oddSockets = []struct {
	name, suffix, proto string
	set                 func(fd int) error
}{
	{"IPv4 options", "4", "udp", options(unix.IPPROTO_IP, unix.IP_OPTIONS, 1, 1, 1, 0)},
	{"IPv4 options", "4", "tcp", options(unix.IPPROTO_IP, unix.IP_OPTIONS, 1, 1, 1, 0)},
	{"destination options", "6", "udp", options(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, 0, 0, 1, 4, 0, 0, 0, 0)},
	{"destination options", "6", "tcp", options(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, 0, 0, 1, 4, 0, 0, 0, 0)},
	{"hop-by-hop options", "6", "udp", options(unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, 0, 0, 1, 4, 0, 0, 0, 0)},
	{"no checksum", "4", "udp", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }},
	{"no checksum", "6", "udp", noCheck6},
}

// noCheck6 lets a socket send and take IPv6 datagrams without a checksum.
func noCheck6(fd int) error {
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, udpNoCheck6TX, 1), unix.SetsockoptInt(fd, unix.IPPROTO_UDP, udpNoCheck6RX, 1))
}

func options(level, name int, bytes ...byte) func(int) error {
	return func(fd int) error { return unix.SetsockoptString(fd, level, name, string(bytes)) }
}

func control(set func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctl := c.Control(func(fd uintptr) { err = set(int(fd)) }); ctl != nil {
			return ctl
		}
		return err
	}
}

// serveUnchecked is a UDP server that takes IPv6 datagrams without a checksum, and answers so.
func serveUnchecked(t testing.TB, ns scope, name, addr string) {
	t.Helper()
	var pc net.PacketConn
	err := ns.Do(func() (err error) {
		cfg := net.ListenConfig{Control: control(noCheck6)}
		pc, err = cfg.ListenPacket(t.Context(), "udp6", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	go serveUDP(pc, name)
}

// Options, extension headers and datagrams without a checksum are translated on every way, in both directions where the server answers likewise.
func TestPrivilegedOddSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app, other := w.add(rt, "web", tcp(8080, 80), udp(8080, 80), udp(8081, 81)), w.add(rt, "app"), w.add(w.runtime(net1()), "other")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	serveUnchecked(t, web.NS, "web", ":81")
	serveUnchecked(t, w.Client().NS, "client", ":9001")
	for _, odd := range oddSockets {
		t.Run(odd.name+"/"+odd.proto+odd.suffix, func(t *testing.T) {
			fam := families()[map[string]int{"4": 0, "6": 1}[odd.suffix]]
			published, served, own := uint16(8080), uint16(9000), uint16(80)
			if odd.name == "no checksum" && odd.suffix == "6" {
				published, served, own = 8081, 9001, 81
			}
			for _, x := range []struct {
				way
				ns scope
			}{
				{way{"hostPort", nil, at(fam.node(w.Client()), published)}, w.Client()},
				{way{"masquerade", nil, at(fam.client(w.Client()), served)}, app},
				{way{"hairpin", nil, at(fam.node(w.Client()), published)}, app},
				{way{"between networks", nil, at(fam.pod(web), own)}, other},
			} {
				var c net.Conn
				err := x.ns.Do(func() (err error) {
					d := net.Dialer{Control: control(odd.set), Timeout: patience}
					c, err = d.DialContext(t.Context(), odd.proto+odd.suffix, x.to)
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", x.name, err)
					continue
				}
				k, err := newTalk(c, patience)
				if err != nil {
					t.Errorf("%s: %v", x.name, err)
					continue
				}
				if err := k.rounds(longTalk); err != nil {
					t.Errorf("%s: %v", x.name, err)
				}
				_ = k.Close()
			}
		})
	}
}
