// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Of <linux/udp.h>.
const (
	udpNoCheck6TX = 101
	udpNoCheck6RX = 102
)

// slowSockets make packets of shapes that the first parser leaves to the second one, or that have no UDP checksum.
var slowSockets = []struct {
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
func serveUnchecked(t testing.TB, ns e2etest.Namespace, name, addr string) {
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
	go e2etest.ServeUDP(pc, name)
}

// Options, extension headers and datagrams without a checksum are translated on every way, in both directions where the server answers likewise.
func TestPrivilegedOddSockets(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app, other := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.UDP(8081, 81)), w.AddPod(rt, "app"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	serveUnchecked(t, web.NS, "web", ":81")
	serveUnchecked(t, w.Client().NS, "client", ":9001")
	for _, odd := range slowSockets {
		t.Run(odd.name+"/"+odd.proto+odd.suffix, func(t *testing.T) {
			fam := e2etest.Families()[map[string]int{"4": 0, "6": 1}[odd.suffix]]
			published, served, own := uint16(8080), uint16(9000), uint16(80)
			if odd.name == "no checksum" && odd.suffix == "6" {
				published, served, own = 8081, 9001, 81
			}
			for _, x := range []struct {
				e2etest.Path
				ns e2etest.Namespace
			}{
				{e2etest.Path{Name: "hostPort", To: e2etest.At(fam.Node(w.Client()), published)}, w.Client()},
				{e2etest.Path{Name: "masquerade", To: e2etest.At(fam.Client(w.Client()), served)}, app},
				{e2etest.Path{Name: "hairpin", To: e2etest.At(fam.Node(w.Client()), published)}, app},
				{e2etest.Path{Name: "between networks", To: e2etest.At(fam.Pod(web), own)}, other},
			} {
				var c net.Conn
				err := x.ns.Do(func() (err error) {
					d := net.Dialer{Control: control(odd.set), Timeout: e2etest.AnswerTimeout}
					c, err = d.DialContext(t.Context(), odd.proto+odd.suffix, x.To)
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", x.Name, err)
					continue
				}
				k, err := e2etest.NewTalk(c, e2etest.AnswerTimeout)
				if err != nil {
					t.Errorf("%s: %v", x.Name, err)
					continue
				}
				if err := k.SendRounds(e2etest.LongTalk); err != nil {
					t.Errorf("%s: %v", x.Name, err)
				}
				_ = k.Close()
			}
		})
	}
}
