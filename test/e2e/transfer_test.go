// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// transferSize is large enough for TCP to send segments of 64 KiB (GSO), and
// small enough for the slow path of a busy machine.
var transferSize = int64(netlab.Fewer(48<<20, 4<<20))

// stream is pseudo-random data that differs for each seed.
func stream(seed uint64) io.Reader {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	return io.LimitReader(rand.NewChaCha8(key), transferSize)
}

func sumOf(r io.Reader) ([]byte, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err == nil && n != transferSize {
		err = fmt.Errorf("%d bytes, want %d", n, transferSize)
	}
	return h.Sum(nil), err
}

// bulkServer reads one stream whole, then writes another, and tells what it read.
func bulkServer(t testing.TB, ns place, addr string) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := ns.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go bulkAnswer(c)
			}
		}()
	}
}

func bulkAnswer(c net.Conn) {
	defer c.Close()
	sum, err := sumOf(io.LimitReader(c, transferSize))
	if err != nil {
		return
	}
	if _, err := c.Write(sum); err == nil {
		_, _ = io.Copy(c, stream(2))
	}
}

// bulkClient sends a stream, compares the server's checksum, then reads the
// server's stream and compares that.
func bulkClient(ns place, network, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := ns.DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(netlab.Patient(30 * time.Second))); err != nil {
		return err
	}
	if _, err := io.Copy(c, stream(1)); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	want, err := sumOf(stream(1))
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if !bytes.Equal(got, want) {
		return errors.New("upload: the server got other data than was sent")
	}
	if got, err = sumOf(c); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	if want, err = sumOf(stream(2)); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("download: other data than the server sent")
	}
	return nil
}

// Large transfers arrive unharmed on every kind of path.
func TestPrivilegedTransfer(t *testing.T) {
	w := newWorld(t) // not parallel: it keeps the machine busy
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80)), w.add(rt, "app")
	bulkServer(t, web, ":80")
	bulkServer(t, w.Client(), ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		tests := []struct {
			name, addr string
			from       place
		}{
			{"client to hostPort", at(fam.node(w.Client()), 8080), w.Client()},
			{"pod to client, masqueraded", at(fam.client(w.Client()), 9000), app},
			{"client to pod", at(fam.pod(web), 80), w.Client()},
			{"pod to pod", at(fam.pod(web), 80), app},
			{"node to pod", at(fam.pod(web), 80), w.Node},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				if err := bulkClient(tt.from, "tcp"+fam.suffix, tt.addr); err != nil {
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
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80)), w.add(rt, "app")
	bulkServer(t, web, ":80")
	bulkServer(t, w.Client(), ":9000")
	// The client announces segments for 1500, so that only the node knows of the bottleneck, but sends none that a device with
	// 1400 would not take: one that does not leave as part of a larger one veth drops.
	sh(t, w.Node, "ip link set eth0 mtu 1400")
	sh(t, w.Client(), "ip route change 192.0.2.0/24 dev eth0 mtu 1400 advmss 1460")
	sh(t, w.Client(), "ip -6 route change 2001:db8:1::/64 dev eth0 proto kernel metric 256 mtu 1400 advmss 1440")
	eachFamily(t, func(t *testing.T, fam family) {
		if err := bulkClient(app, "tcp"+fam.suffix, at(fam.client(w.Client()), 9000)); err != nil {
			t.Errorf("pod to client: %v", err)
		}
		if err := bulkClient(w.Client(), "tcp"+fam.suffix, at(fam.node(w.Client()), 8080)); err != nil {
			t.Errorf("client to hostPort: %v", err)
		}
	})
}

// Datagrams as large as the devices carry in one packet, of every size near
// the edges, arrive whole in both directions.
func TestPrivilegedDatagramSizes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		for _, x := range []struct {
			from place
			to   string
		}{{w.Client(), at(fam.node(w.Client()), 8080)}, {app, at(fam.client(w.Client()), 9000)}} {
			c, err := dial(x.from, "udp"+fam.suffix, "", x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// The answer is longer than the question by the server's greeting.
			for _, n := range []int{0, 1, 2, 3, 100, 1000, 1279, 1280, 1281, 1350} {
				if err := c.say(strings.Repeat("x", n)); err != nil {
					t.Errorf("%s, %d bytes: %v", x.to, n, err)
				}
			}
		}
	})
}

// Closing one direction lets the other go on.
func TestPrivilegedHalfClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80))
	serve(t, web, "web", ":80")
	eachFamily(t, func(t *testing.T, fam family) {
		for i := range 10 {
			c, err := dial(w.Client(), "tcp"+fam.suffix, "", at(fam.node(w.Client()), 8080))
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
			if got, err := io.ReadAll(c.r); err != nil || string(got) != "last words" {
				t.Fatalf("connection %d: echo after half-close is %q, %v", i, got, err)
			}
		}
	})
}

// The source port of a connection that was reset can be used again at once,
// time after time, through a hostPort and through masquerade.
func TestPrivilegedPortReuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web, app := w.add(rt, "web", tcp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		for _, x := range []struct {
			from place
			to   string
		}{{w.Client(), at(fam.node(w.Client()), 8080)}, {app, at(fam.client(w.Client()), 9000)}} {
			for i := range 30 {
				var c *talk
				// A process that another test starts may hold a copy of the
				// last socket until it has become another program.
				eventually(t, time.Second, func() (err error) {
					if c, err = dial(x.from, "tcp"+fam.suffix, ":42000", x.to); errors.Is(err, unix.EADDRINUSE) {
						return err
					}
					if err != nil {
						t.Fatalf("%s, connection %d: %v", x.to, i, err)
					}
					return nil
				})
				err := c.rounds(3)
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
