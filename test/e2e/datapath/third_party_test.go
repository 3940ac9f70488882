// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Guesses of a third party: sequence numbers all over the space, each with these TCP flags.
const guesses = 512

var guessedFlags = map[string]byte{"RST": 4, "RST+ACK": 4 | 16, "FIN+ACK": 1 | 16, "SYN": 2, "SYN+ACK": 2 | 16}

// guess is the n-th packet of a third party who knows the tuple, from one end of the connection to the node (f.to).
func (f flood) guess(from netip.AddrPort, flags byte, n uint32) []byte {
	b, l4 := f.header()
	copy(b[l4-2*len(from.Addr().AsSlice()):], from.Addr().AsSlice())
	if f.fam.Suffix == "4" {
		binary.BigEndian.PutUint16(b[24:], e2etest.InternetChecksum(b[14:34]))
	}
	binary.BigEndian.PutUint16(b[l4:], from.Port())
	binary.BigEndian.PutUint32(b[l4+4:], n*(1<<32/guesses)+0x3579)
	binary.BigEndian.PutUint32(b[l4+8:], n*(1<<32/guesses)+0x2468)
	b[l4+13] = flags
	pseudo := append([]byte{}, b[l4-2*len(from.Addr().AsSlice()):l4]...)
	pseudo = append(pseudo, 0, f.proto, 0, byte(len(b)-l4))
	binary.BigEndian.PutUint16(b[l4+16:], e2etest.InternetChecksum(append(pseudo, b[l4:]...)))
	return b
}

// sendFrames sends whole frames from a device of the calling thread's namespace.
func sendFrames(dev string, frames [][]byte) error {
	iface, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: iface.Index, Halen: 6}); err != nil {
			return err
		}
	}
	return nil
}

// A third party knows the ends of a connection, but not its sequence numbers. It sends RST, FIN and SYN with guesses to the node.
// No connection ends, through a hostPort or masqueraded, and no entry says that it does.
func TestPrivilegedThirdParty(t *testing.T) {
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	type victim struct {
		*e2etest.Talk
		name     string
		fam      e2etest.Family
		from, to netip.AddrPort // as the wire has them, toward the node
	}
	var all []victim
	for i := range 6 {
		fam := e2etest.Families()[i%2]
		if i < 3 {
			hostPort := netip.MustParseAddrPort(e2etest.At(fam.Node(w.Client()), 8080))
			c, err := e2etest.Dial(w.Client(), "tcp"+fam.Suffix, "", hostPort.String())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, victim{Talk: c, name: fmt.Sprintf("hostPort %d", i), fam: fam, from: e2etest.Unmapped(c.LocalAddr()), to: hostPort})
			continue
		}
		server := netip.MustParseAddrPort(e2etest.At(fam.Client(w.Client()), 9000))
		c, err := e2etest.Dial(app, "tcp"+fam.Suffix, "", server.String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, victim{Talk: c, name: fmt.Sprintf("masquerade %d", i), fam: fam, from: server, to: c.Answer.Peer})
	}
	for _, v := range all {
		defer v.Close()
		if err := v.SendRounds(e2etest.LongTalk); err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
	}
	before := w.Counters(t, web)
	f := flood{proto: unix.IPPROTO_TCP, src: deviceMAC(t, w.Client(), "eth0"), dst: deviceMAC(t, w.Node, "eth0")}
	for _, v := range all {
		f.fam, f.to = v.fam, v.to
		for name, flags := range guessedFlags {
			var frames [][]byte
			for n := range uint32(guesses) {
				frames = append(frames, f.guess(v.from, flags, n))
			}
			if err := w.Client().Do(func() error { return sendFrames("eth0", frames) }); err != nil {
				t.Fatalf("%s, %s: %v", v.name, name, err)
			}
		}
	}
	if got := w.Counters(t, web).RxPackets - before.RxPackets; got < guesses {
		t.Errorf("%d guesses reached the pod", got)
	}
	lost := 0
	for _, v := range all {
		if err := v.SendRounds(e2etest.LongTalk); err != nil {
			t.Logf("%s: %v", v.name, err)
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d connections ended", lost, len(all))
	}
	var flows []struct {
		Proto       string
		Pod, Remote netip.AddrPort
		State       string
		Fast        bool
	}
	w.SluiceJSON(t, &flows, "conntrack list")
	live := 0
	for _, f := range flows {
		if f.Proto != "tcp" {
			continue
		}
		if f.State != "established" || !f.Fast {
			t.Errorf("the connection of %s and %s is %s, fast %t", f.Pod, f.Remote, f.State, f.Fast)
		}
		live++
	}
	if live != len(all) {
		t.Errorf("%d connections in the table, want %d", live, len(all))
	}
}
