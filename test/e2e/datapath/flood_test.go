// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	floodBatch  = 64
	established = 1000
)

// flood sends packets with sources that no host has, from the client's device to a port
// of the node.
type flood struct {
	fam      e2etest.Family
	proto    byte // unix.IPPROTO_TCP or IPPROTO_UDP
	to       netip.AddrPort
	src, dst net.HardwareAddr
}

// header returns a packet without its source, and where its L4 header is.
func (f flood) header() (b []byte, l4 int) {
	size := map[byte]int{unix.IPPROTO_TCP: 20, unix.IPPROTO_UDP: 8 + 5}[f.proto]
	b = append(append(b, f.dst...), f.src...)
	if f.fam.Suffix == "4" {
		b = append(b, 8, 0, 0x45, 0, 0, byte(20+size), 0, 0, 0x40, 0, 64, f.proto, 0, 0, 0, 0, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(size), f.proto, 64)
		b = append(b, make([]byte, 16)...)
	}
	b = append(b, f.to.Addr().AsSlice()...)
	l4 = len(b)
	b = append(b, make([]byte, size)...)
	binary.BigEndian.PutUint16(b[l4+2:], f.to.Port())
	if f.proto == unix.IPPROTO_TCP {
		b[l4+12], b[l4+13], b[l4+14] = 5<<4, 2, 0x80 // SYN
	} else {
		binary.BigEndian.PutUint16(b[l4+4:], uint16(size))
		copy(b[l4+8:], "flood")
	}
	return b, l4
}

// fill makes b the n-th packet: of 2^20 addresses, each with a few ports.
func (f flood) fill(b []byte, l4 int, n uint32) {
	if f.fam.Suffix == "4" {
		binary.BigEndian.PutUint32(b[26:], 198<<24|18<<16|n&0x1ffff) // 198.18.0.0/15
		b[24], b[25] = 0, 0
		binary.BigEndian.PutUint16(b[24:], e2etest.InternetChecksum(b[14:34]))
	} else {
		copy(b[22:], []byte{0x20, 1, 0, 2}) // 2001:2::/48, as 198.18.0.0/15 for benchmarks (RFC 5180)
		binary.BigEndian.PutUint32(b[34:], n)
	}
	binary.BigEndian.PutUint16(b[l4:], uint16(1024+n>>17))
	at := l4 + map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[f.proto]
	b[at], b[at+1] = 0, 0
	pseudo := append([]byte{}, b[l4-2*len(f.to.Addr().AsSlice()):l4]...)
	pseudo = append(pseudo, 0, f.proto, 0, byte(len(b)-l4))
	binary.BigEndian.PutUint16(b[at:], e2etest.InternetChecksum(append(pseudo, b[l4:]...)))
}

// mmsghdr is struct mmsghdr of <sys/socket.h>.
type mmsghdr struct {
	hdr unix.Msghdr
	_   [8]byte
}

// send runs in the namespace of the device. The packets are those from first on.
func (f flood) send(dev string, first, packets int) error {
	iface, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: iface.Index}); err != nil {
		return err
	}
	var msgs [floodBatch]mmsghdr
	var iovs [floodBatch]unix.Iovec
	var all [floodBatch][]byte
	var l4 int
	for i := range msgs {
		all[i], l4 = f.header()
		iovs[i].Base = &all[i][0]
		iovs[i].SetLen(len(all[i]))
		msgs[i].hdr.Iov = &iovs[i]
		msgs[i].hdr.SetIovlen(1)
	}
	for n := 0; n < packets; {
		want := min(floodBatch, packets-n)
		for i := range want {
			f.fill(all[i], l4, uint32(first+n+i))
		}
		sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(want), 0, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS && errno != unix.EAGAIN {
			return errno
		}
		if errno == 0 {
			n += int(sent)
		}
	}
	return nil
}

// sendAll sends from two threads.
func (f flood) sendAll(from *netlab.Client, packets int) error {
	const senders = 2
	done := make(chan error, senders)
	for i := range senders {
		go func() {
			done <- from.Do(func() error { return f.send("eth0", i*packets/senders, packets/senders) })
		}()
	}
	var errs []error
	for range senders {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// volume is by default many times what the tables hold for openings; "make test-volume" sends a million.
var volume = flag.Int("volume", 200_000, "packets of each flood of TestPrivilegedFlood")

// A thousand connections through a hostPort survive a flood of packets that open new
// ones from spoofed sources: none of them leaves the fast path for a moment.
func TestPrivilegedFlood(t *testing.T) {
	w := e2etest.NewWorld(t)
	w.Configure(`{"relearnSeconds": 3600}`) // the flood is what could take them off the fast path
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(proto+fam.Suffix, func(t *testing.T) {
				talks := crowd(t, w, fam, proto)
				f := flood{fam: fam, proto: map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[proto]}
				f.to = netip.AddrPortFrom(fam.Node(w.Client()), 8080)
				f.src, f.dst = deviceMAC(t, w.Client(), "eth0"), deviceMAC(t, w.Node, "eth0")
				before := w.Counters(t, web)
				packets, start := *volume, time.Now()
				if err := f.sendAll(w.Client(), packets); err != nil {
					t.Fatal(err)
				}
				took := time.Since(start)
				flooded := w.Counters(t, web)
				lost := 0
				for _, c := range talks {
					c.Timeout = 2 * e2etest.AnswerTimeout
					err := c.Send("still there?")
					if err != nil && c.UDP {
						// The server's buffer may have been full of the flood; a connection that is lost is so the second time too.
						t.Log(err)
						err = c.Send("still there?")
					}
					if err != nil {
						t.Log(err)
						lost++
					}
				}
				after := w.Counters(t, web)
				fast := after.RxFast - flooded.RxFast
				t.Logf("%d packets from spoofed sources in %.1f s, %d of them reached the pod; %d of %d connections lost; %d packets of theirs took the fast path",
					packets, took.Seconds(), flooded.RxPackets-before.RxPackets, lost, established, fast)
				if lost > 0 || fast < established {
					t.Errorf("%d of %d connections lost, %d packets took the fast path, want none and at least %d", lost, established, fast, established)
				}
				if got := flooded.RxPackets - before.RxPackets; got < uint64(packets)/2 {
					t.Errorf("only %d packets of the flood reached the pod", got)
				}
			})
		}
	}
}

// crowd opens the connections and brings them onto the fast path.
func crowd(t *testing.T, w *e2etest.World, fam e2etest.Family, proto string) []*e2etest.Talk {
	t.Helper()
	var talks []*e2etest.Talk
	open := func() (*e2etest.Talk, error) {
		c, err := e2etest.Dial(w.Client(), proto+fam.Suffix, "", e2etest.At(fam.Node(w.Client()), 8080))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, c.SendRounds(3)
	}
	for i := range established {
		c, err := open()
		if err != nil && proto == "udp" {
			// Queues on the way may still hold the answers to the flood before: a path that is broken fails the second time too.
			t.Logf("connection %d: %v; drops so far: %+v", i+1, err, w.Status().Drops)
			c, err = open()
		}
		if err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, established, err)
		}
		talks = append(talks, c)
	}
	return talks
}

func deviceMAC(t testing.TB, ns interface{ Do(func() error) error }, dev string) net.HardwareAddr {
	t.Helper()
	var mac net.HardwareAddr
	err := ns.Do(func() error {
		i, err := net.InterfaceByName(dev)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("device %s: %w", dev, err))
	}
	return mac
}
