// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Large transfers arrive unharmed on every kind of path.
func TestPrivilegedTransfer(t *testing.T) {
	w := e2etest.NewWorld(t) // not parallel: it keeps the machine busy
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.BulkServer(t, web, ":80")
	e2etest.BulkServer(t, w.Client(), ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		tests := []struct {
			name, addr string
			from       e2etest.Place
		}{
			{"client to hostPort", e2etest.At(fam.Node(w.Client()), 8080), w.Client()},
			{"pod to client, masqueraded", e2etest.At(fam.Client(w.Client()), 9000), app},
			{"client to pod", e2etest.At(fam.Pod(web), 80), w.Client()},
			{"pod to pod", e2etest.At(fam.Pod(web), 80), app},
			{"node to pod", e2etest.At(fam.Pod(web), 80), w.Node},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				if err := e2etest.BulkClient(tt.from, "tcp"+fam.Suffix, tt.addr); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// An uplink smaller than the pods' devices: the stack tells the senders, so
// nothing hangs.
func TestPrivilegedSmallUplink(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.BulkServer(t, web, ":80")
	e2etest.BulkServer(t, w.Client(), ":9000")
	// The client announces segments for 1500, so that only the node knows of the bottleneck, but sends none that a device with
	// 1400 would not take: one that does not leave as part of a larger one veth drops.
	e2etest.MustRun(t, w.Node, "ip link set eth0 mtu 1400")
	e2etest.MustRun(t, w.Client(), "ip route change 192.0.2.0/24 dev eth0 mtu 1400 advmss 1460")
	e2etest.MustRun(t, w.Client(), "ip -6 route change 2001:db8:1::/64 dev eth0 proto kernel metric 256 mtu 1400 advmss 1440")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if err := e2etest.BulkClient(app, "tcp"+fam.Suffix, e2etest.At(fam.Client(w.Client()), 9000)); err != nil {
			t.Errorf("pod to client: %v", err)
		}
		if err := e2etest.BulkClient(w.Client(), "tcp"+fam.Suffix, e2etest.At(fam.Node(w.Client()), 8080)); err != nil {
			t.Errorf("client to hostPort: %v", err)
		}
	})
}

// Datagrams as large as the devices carry in one packet, of every size near
// the edges, arrive whole in both directions.
func TestPrivilegedDatagramSizes(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, x := range []struct {
			from e2etest.Place
			to   string
		}{{w.Client(), e2etest.At(fam.Node(w.Client()), 8080)}, {app, e2etest.At(fam.Client(w.Client()), 9000)}} {
			c, err := e2etest.Dial(x.from, "udp"+fam.Suffix, "", x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// The answer is longer than the question by the server's greeting.
			for _, n := range []int{0, 1, 2, 3, 100, 1000, 1279, 1280, 1281, 1350} {
				if err := c.Send(strings.Repeat("x", n)); err != nil {
					t.Errorf("%s, %d bytes: %v", x.to, n, err)
				}
			}
		}
	})
}

// Closing one direction lets the other go on.
func TestPrivilegedHalfClose(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for i := range 10 {
			c, err := e2etest.Dial(w.Client(), "tcp"+fam.Suffix, "", e2etest.At(fam.Node(w.Client()), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("last words")); err != nil {
				t.Fatal(err)
			}
			if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c.Reader); err != nil || string(got) != "last words" {
				t.Fatalf("connection %d: echo after half-close is %q, %v", i, got, err)
			}
		}
	})
}

// The source port of a connection that was reset can be used again at once,
// time after time, through a hostPort and through masquerade.
func TestPrivilegedPortReuse(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, x := range []struct {
			from e2etest.Place
			to   string
		}{{w.Client(), e2etest.At(fam.Node(w.Client()), 8080)}, {app, e2etest.At(fam.Client(w.Client()), 9000)}} {
			for i := range 30 {
				var c *e2etest.Talk
				// A process that another test starts may hold a copy of the
				// last socket until it has become another program.
				e2etest.Eventually(t, time.Second, func() (err error) {
					if c, err = e2etest.Dial(x.from, "tcp"+fam.Suffix, ":42000", x.to); errors.Is(err, unix.EADDRINUSE) {
						return err
					}
					if err != nil {
						t.Fatalf("%s, connection %d: %v", x.to, i, err)
					}
					return nil
				})
				err := c.SendRounds(3)
				if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
				if err != nil {
					t.Fatalf("%s, connection %d: %v", x.to, i, err)
				}
			}
		}
	})
}
