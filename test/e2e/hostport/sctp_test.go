// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func sctpSocket(a netip.Addr) (int, error) {
	domain := unix.AF_INET
	if a.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(e2etest.AnswerTimeout))
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} { // the latter is that of connect too
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &limit); err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
	}
	return fd, nil
}

// serveSCTP answers each message of a connection with its name, the peer and the message.
func serveSCTP(t testing.TB, ns e2etest.Namespace, name string, port uint16) {
	t.Helper()
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		var fd int
		err := ns.Do(func() (err error) {
			if fd, err = sctpSocket(any); err != nil {
				return err
			}
			if any.Is6() {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
					return err
				}
			}
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.Bind(fd, e2etest.Sockaddr(netip.AddrPortFrom(any, port))), unix.Listen(fd, 16))
		})
		if err != nil {
			t.Fatalf("SCTP server on %s: %v", any, err)
		}
		stop := make(chan struct{})
		t.Cleanup(func() { close(stop) })
		go acceptSCTP(fd, name, stop)
	}
}

func acceptSCTP(fd int, name string, stop <-chan struct{}) {
	defer unix.Close(fd)
	for {
		c, from, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		select {
		case <-stop:
			return
		default:
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // SO_RCVTIMEO
			continue
		}
		if err != nil {
			return
		}
		go echoSCTP(c, name, from)
	}
}

func echoSCTP(fd int, name string, from unix.Sockaddr) {
	defer unix.Close(fd)
	peer := ""
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		peer = netip.AddrFrom4(a.Addr).String()
	case *unix.SockaddrInet6:
		peer = netip.AddrFrom16(a.Addr).String()
	}
	b := make([]byte, 1<<14)
	for {
		n, err := unix.Read(fd, b)
		if err != nil || n == 0 {
			return
		}
		if _, err := unix.Write(fd, fmt.Appendf(nil, "%s %s %s", name, peer, b[:n])); err != nil {
			return
		}
	}
}

// askSCTP holds a conversation and returns which host answered and which client it saw.
func askSCTP(ns e2etest.Namespace, to netip.AddrPort) (name, peer string, err error) {
	var fd int
	err = ns.Do(func() (err error) {
		if fd, err = sctpSocket(to.Addr()); err != nil {
			return err
		}
		return unix.Connect(fd, e2etest.Sockaddr(to))
	})
	defer unix.Close(fd)
	if err != nil {
		return "", "", fmt.Errorf("connect to %s: %w", to, err)
	}
	b := make([]byte, 1<<14)
	for i := range 10 {
		word := fmt.Sprintf("word-%d-%s", i, strings.Repeat("x", i*100))
		if _, err := unix.Write(fd, []byte(word)); err != nil {
			return "", "", err
		}
		n, err := unix.Read(fd, b)
		if err != nil {
			return "", "", fmt.Errorf("answer of %s to message %d: %w", to, i, err)
		}
		f := strings.Fields(string(b[:n]))
		if len(f) != 3 || f[2] != word {
			return "", "", fmt.Errorf("answer of %s is %q", to, b[:n])
		}
		name, peer = f[0], f[1]
	}
	return name, peer, nil
}

func sctp(host, container int) e2etest.PortMapping {
	return e2etest.PortMapping{HostPort: host, ContainerPort: container, Protocol: "sctp"}
}

// SCTP keeps its ports: a mapping with the same one is the datapath's, from outside and by a hairpin; one with another falls back to
// netfilter, alone. What a pod opens itself is masqueraded.
func TestPrivilegedSCTP(t *testing.T) {
	t.Parallel()
	require.SCTP(t)
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", sctp(8080, 8080), sctp(8081, 80), e2etest.TCP(8082, 80))
	sibling, other := w.AddPod(rt, "sibling"), w.AddPod(w.Runtime(e2etest.Net1()), "other")
	serveSCTP(t, web, "same", 8080)
	serveSCTP(t, web, "other", 80)
	serveSCTP(t, w.Client(), "client", 9000)
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		node := fam.Node(w.Client())
		for _, x := range []struct {
			what       string
			from       e2etest.Namespace
			to         netip.AddrPort
			name, seen string
		}{
			{"same port", w.Client(), netip.AddrPortFrom(node, 8080), "same", fam.Client(w.Client()).String()},
			{"other port", w.Client(), netip.AddrPortFrom(node, 8081), "other", fam.Client(w.Client()).String()},
			{"sibling", sibling, netip.AddrPortFrom(node, 8080), "same", fam.Gateway},
			{"itself", web, netip.AddrPortFrom(node, 8080), "same", fam.Gateway},
			{"another network", other, netip.AddrPortFrom(node, 8080), "same", fam.Gateway},
			{"masquerade", sibling, netip.AddrPortFrom(fam.Client(w.Client()), 9000), "client", node.String()},
			{"between networks", other, netip.AddrPortFrom(fam.Pod(web), 8080), "same", fam.Gateway},
		} {
			name, seen, err := askSCTP(x.from, x.to)
			if err != nil || name != x.name || seen != x.seen {
				t.Errorf("%s: %s saw %s, want %s to see %s: %v", x.what, name, seen, x.name, x.seen, err)
			}
		}
		if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(node, 8082)); got.Server != "web" {
			t.Errorf("the TCP port beside it: answered by %s", got.Server)
		}
	})
	e2etest.AssertChecked(t, web)
	web.MustDel()
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, port := range []uint16{8080, 8081} {
			if name, _, err := askSCTP(w.Client(), netip.AddrPortFrom(fam.Node(w.Client()), port)); err == nil {
				t.Errorf("port %d after DEL: answered by %s", port, name)
			}
		}
	})
}
