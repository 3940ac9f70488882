// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// farPlace is a namespace behind the client, which routes to it.
type farPlace struct {
	*netlab.Pod
	addr4, addr6 netip.Addr
}

func (f farPlace) addr(fam e2etest.Family) netip.Addr {
	if fam.Suffix == "4" {
		return f.addr4
	}
	return f.addr6
}

// behindRouter makes the client a router whose next hop takes packets of 1300 bytes
// at most, on the way from the node to the far place. The way back has no such limit,
// so neither end learns of it but by an ICMP error.
func behindRouter(t testing.TB, w *e2etest.World) farPlace {
	t.Helper()
	f := farPlace{w.Node.PodT(t, "far"), netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("fd00:99::2")}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := w.Client().WriteSysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	e2etest.MustRun(t, w.Client(), "ip link add far type veth peer name eth0 netns "+f.ProcPath())
	for _, line := range []string{
		"ip link set far up", "ip addr add 10.99.0.1/24 dev far", "ip addr add fd00:99::1/64 dev far nodad",
		"ip route add 10.99.0.2/32 dev far mtu lock 1300", "ip route add fd00:99::2/128 dev far mtu lock 1300",
	} {
		e2etest.MustRun(t, w.Client(), line)
	}
	for _, line := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 10.99.0.2/24 dev eth0", "ip addr add fd00:99::2/64 dev eth0 nodad",
		"ip route add default via 10.99.0.1", "ip route add default via fd00:99::1",
	} {
		e2etest.MustRun(t, f, line)
	}
	return f
}

// fastPaths are the modes that a test of the datapath runs in.
var fastPaths = []string{"established", "off"}

// Path MTU discovery works through a hostPort and through masquerade: what the pod
// sends does not fit a hop behind the node, and the router's word for it finds the pod.
func TestPrivilegedPathMTU(t *testing.T) {
	t.Parallel()
	for _, mode := range fastPaths {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(fmt.Sprintf(`{"fastPath": %q}`, mode))
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
			far := behindRouter(t, w)
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, far, "far", ":9000")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					name string
					from e2etest.Place
					to   string
				}{
					{"hostPort", far, e2etest.At(fam.Node(w.Client()), 8080)},
					{"masquerade", app, e2etest.At(far.addr(fam), 9000)},
					{"pod address", far, e2etest.At(fam.Pod(web), 80)},
				} {
					t.Run(x.name, func(t *testing.T) {
						c, err := e2etest.Dial(x.from, "tcp"+fam.Suffix, "", x.to)
						if err != nil {
							t.Fatal(err)
						}
						defer c.Close()
						if err := c.SendRounds(3); err != nil { // now it is on the path of the mode
							t.Fatal(err)
						}
						e2etest.SendLong(t, c, strings.Repeat("x", e2etest.LongerThanQueues))
					})
				}
			})
		})
	}
}

// The link to the pod is the narrow one: the client learns it from the node, in the
// terms of the connection that it knows.
func TestPrivilegedPathMTUToPod(t *testing.T) {
	t.Parallel()
	for _, mode := range fastPaths {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(fmt.Sprintf(`{"fastPath": %q}`, mode))
			web := w.AddPod(w.Runtime(e2etest.Network{Extra: e2etest.Attributes{"mtu": 1300}}), "web", e2etest.TCP(8080, 80))
			e2etest.Serve(t, web, "web", ":80")
			// The pod promises to take more than its link does.
			e2etest.MustRun(t, web, "ip route change default via 10.1.0.1 advmss 1460")
			e2etest.MustRun(t, web, "ip -6 route change default via fd00:10:1::1 advmss 1440")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				c, err := e2etest.Dial(w.Client(), "tcp"+fam.Suffix, "", e2etest.At(fam.Node(w.Client()), 8080))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.SendRounds(3); err != nil {
					t.Fatal(err)
				}
				e2etest.SendLong(t, c, strings.Repeat("x", e2etest.LongerThanQueues))
			})
		})
	}
}

// No process listens: the sender gets the error, in both directions.
func TestPrivilegedPortUnreachable(t *testing.T) {
	t.Parallel()
	for _, mode := range fastPaths {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(fmt.Sprintf(`{"fastPath": %q}`, mode))
			rt := w.Runtime(e2etest.Net0())
			w.AddPod(rt, "web", e2etest.UDP(8080, 80))
			app := w.AddPod(rt, "app")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					name string
					from e2etest.Place
					to   string
				}{
					{"hostPort", w.Client(), e2etest.At(fam.Node(w.Client()), 8080)},
					{"masquerade", app, e2etest.At(fam.Client(w.Client()), 9000)},
				} {
					t.Run(x.name, func(t *testing.T) { assertPortUnreachable(t, x.from, "udp"+fam.Suffix, x.to) })
				}
			})
		})
	}
}

func assertPortUnreachable(t testing.TB, from e2etest.Place, network, to string) {
	t.Helper()
	c, err := from.DialContext(t.Context(), network, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The kernel limits how many errors it sends, so one try may stay without.
	e2etest.Eventually(t, e2etest.AnswerTimeout, func() error {
		if _, err := c.Write([]byte("anybody?")); errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 1))
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return fmt.Errorf("a datagram to %s that nobody takes: %w, want %w", to, err, unix.ECONNREFUSED)
	})
}

// A packet that runs out of hops behind the node: the pod is told, as traceroute needs it.
func TestPrivilegedTimeExceeded(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
	far := behindRouter(t, w)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		c, err := app.DialContext(t.Context(), "udp"+fam.Suffix, e2etest.At(far.addr(fam), 33434))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := tellErrors(c.(*net.UDPConn), fam, 2); err != nil {
			t.Fatal(err)
		}
		e2etest.Eventually(t, e2etest.AnswerTimeout, func() error {
			_, _ = c.Write([]byte("how far?"))
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			if errors.Is(err, unix.EHOSTUNREACH) {
				return nil
			}
			return fmt.Errorf("a datagram with two hops: %w, want %w", err, unix.EHOSTUNREACH)
		})
	})
}

// tellErrors gives a socket's packets so many hops, and the socket every ICMP error.
func tellErrors(c *net.UDPConn, fam e2etest.Family, hops int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = setErrors(int(fd), fam.Suffix == "4", hops) })
	return errors.Join(err, set)
}

func setErrors(fd int, v4 bool, hops int) error {
	if v4 {
		return errors.Join(syscall.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1),
			syscall.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops))
	}
	return errors.Join(syscall.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1),
		syscall.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops))
}
