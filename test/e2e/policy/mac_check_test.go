// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// checkedL2 is a bridge without addresses whose ports have macspoofchk.
func checkedL2() e2etest.Network {
	return e2etest.Network{NoMasq: true, Plugins: []string{}, Extra: e2etest.Attributes{"macspoofchk": true, "isGateway": false, "ipam": e2etest.Attributes{}}}
}

// ipv4Datagram is a header that br_netfilter does not refuse, with 40 bytes behind it.
func ipv4Datagram() string {
	h := []byte{0x45, 0, 0, 20 + 40, 0, 0, 0, 0, 64, 253, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2}
	binary.BigEndian.PutUint16(h[10:], e2etest.InternetChecksum(h))
	return string(h)
}

// ipv6Datagram is the same for IPv6.
func ipv6Datagram() string {
	h := append([]byte{0x60, 0, 0, 0, 0, 40, 253, 64}, make([]byte, 32)...)
	h[8], h[23], h[24], h[39] = 0xfd, 1, 0xfd, 2
	return string(h)
}

// hears returns the words among those that arrive at eth0 of ns while send runs, and shortly after it.
func hears(t *testing.T, ns interface{ Do(func() error) error }, words []string, send func()) map[string]bool {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network byte order
	var fd int
	if err := ns.Do(func() (err error) {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: all})
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300000}); err != nil {
		t.Fatal(err)
	}
	send()
	got, buf := make(map[string]bool), make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return got
		}
		for _, w := range words {
			got[w] = got[w] || bytes.Contains(buf[:n], []byte(w))
		}
	}
}

// A pod with macspoofchk sends frames of every kind with its own MAC only, also on a bridge without addresses, where no other program
// of the datapath looks. The node has no rule of nftables for it, and nothing is left after DEL.
func TestPrivilegedMACSpoofChk(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(checkedL2())
	before := w.Warmup(rt)
	bad, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	e2etest.AssertChecked(t, bad)
	if rules := w.Snapshot().Grep("cni-br-iface-"); len(rules) > 0 {
		t.Errorf("with eBPF there are rules:\n%s", rules)
	}
	mac := func(p *e2etest.Pod) net.HardwareAddr {
		m, err := net.ParseMAC(macOf(t, p, "eth0"))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	own, to := mac(bad), mac(other)
	kinds := map[string]string{"ipv4": "\x08\x00" + ipv4Datagram(), "ipv6": "\x86\xdd" + ipv6Datagram(), "arp": "\x08\x06", "vlan": "\x81\x00\x00\x05\x88\xb5", "experiment": "\x88\xb5"}
	var words []string
	for kind := range kinds {
		words = append(words, "own-"+kind, "false-"+kind)
	}
	send := func() {
		for kind, carries := range kinds {
			for who, mac := range map[string]net.HardwareAddr{"own-": own, "false-": {2, 0, 0, 0, 0xbe, 0xef}} {
				frame := string(to) + string(mac) + carries + who + kind + strings.Repeat("\x00", 60)
				sendFrame(t, bad, []byte(frame))
			}
		}
	}
	var heard map[string]bool
	e2etest.Eventually(t, 20*time.Second, func() error { // the port forwards after a while
		if heard = hears(t, other, words, send); !heard["own-experiment"] {
			return errors.New("the port does not forward yet")
		}
		return nil
	})
	for kind := range kinds {
		if !heard["own-"+kind] {
			t.Errorf("%s with the pod's own MAC does not arrive", kind)
		}
		if heard["false-"+kind] {
			t.Errorf("%s with another MAC arrives", kind)
		}
	}
	if got := w.Drops("source MAC is not the pod's"); got < len(kinds) {
		t.Errorf("%d drops are counted, want %d or more", got, len(kinds))
	}
	bad.MustDel()
	other.MustDel()
	w.AssertNothingLeft(before)
}
