// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// largeSegment is longer than any packet of an MTU of 1500, and shorter than the segments that TCP makes of a stream.
const largeSegment = 8000

// A stream goes in segments of many packets (TSO), and the redirect of the fast path hands them on whole: to a pod, out of it, and
// between pods. Split ones would cost the receiver's stack a pass each.
func TestPrivilegedLargeSegments(t *testing.T) {
	t.Parallel()
	kinds := []string{"veth"}
	if require.HasNetkit(t) {
		kinds = append(kinds, "netkit")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			n := e2etest.Net0()
			n.Extra = e2etest.Attributes{"deviceKind": kind}
			rt := w.Runtime(n)
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
			e2etest.BulkServer(t, web, ":80")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				for _, x := range []struct {
					name string
					from e2etest.Place
					ends map[string]interface{ Do(func() error) error }
					to   string
				}{
					{"by the uplink", w.Client(), map[string]interface{ Do(func() error) error }{"the pod": web, "the client": w.Client()}, e2etest.At(fam.Node(w.Client()), 8080)},
					{"between pods", app, map[string]interface{ Do(func() error) error }{"the pod": web, "the other pod": app}, e2etest.At(fam.Pod(web), 80)},
				} {
					before := w.Counters(t, web)
					stop := make(map[string]func() float64)
					for name, at := range x.ends {
						stop[name] = watchSegments(t, at, largeSegment)
					}
					if err := e2etest.BulkClient(x.from, "tcp"+fam.Suffix, x.to); err != nil {
						t.Errorf("%s: %v", x.name, err)
					}
					for name, f := range stop {
						if share := f(); share < 0.5 {
							t.Errorf("%s, toward %s: %.0f %% of the bytes came in segments of %d or more", x.name, name, 100*share, largeSegment)
						}
					}
					if after := w.Counters(t, web); after.TxFast < before.TxFast+10 {
						t.Errorf("%s: %d of the pod's packets took the fast path", x.name, after.TxFast-before.TxFast)
					}
				}
			})
		})
	}
}

// watchSegments watches what eth0 of ns receives. What it returns ends that, and returns the share of bytes that came in segments of that
// size: the few of the slow path do not count for much.
func watchSegments(t *testing.T, ns interface{ Do(func() error) error }, size int) func() float64 {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network byte order
	var fd int
	if err := ns.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: all})
	}); err != nil {
		t.Fatal(err)
	}
	var ended atomic.Bool
	share := make(chan float64)
	go func() {
		defer unix.Close(fd)
		large, total, head := 0, 0, make([]byte, 64)
		for !ended.Load() {
			n, from, err := unix.Recvfrom(fd, head, unix.MSG_TRUNC)
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && ll.Pkttype == unix.PACKET_HOST {
				total += n
				if n >= size {
					large += n
				}
			}
		}
		share <- float64(large) / float64(max(total, 1))
	}()
	return func() float64 {
		ended.Store(true)
		return <-share
	}
}
