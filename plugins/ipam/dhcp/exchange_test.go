// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// wire is a pod's interface with a server at its other end.
type wire struct {
	t       *testing.T
	pod     *netlab.Pod
	port    *port
	refuses atomic.Bool // the server answers renewals with NAK
}

func newWire(t *testing.T) *wire {
	t.Helper()
	node, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	w := &wire{t: t, pod: node.PodT(t, "pod")}
	node.IPT(t, "link add port0 type veth peer name eth0 netns "+w.pod.ProcPath())
	for _, line := range []string{"addr add 10.1.2.1/24 dev port0", "link set port0 up", "route add 255.255.255.255 dev port0"} {
		node.IPT(t, line)
	}
	conn, err := node.ListenPacket("udp4", "0.0.0.0:67")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go w.serve(conn)
	if w.port, err = newPort(w.pod.ProcPath(), "eth0", "id"); err != nil {
		t.Fatal(err)
	}
	w.port.options, w.port.timeout = &exchangeOptions{}, 3*time.Second
	return w
}

// serve leases 10.1.2.3. As RFC 2131 4.1 and 4.3.2 say, answers go to the
// address the client has, a NAK to everybody.
func (w *wire) serve(conn net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		m, err := dhcpv4.FromBytes(b[:n])
		if err != nil {
			continue
		}
		more := []dhcpv4.Modifier{
			dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3)), dhcpv4.WithLeaseTime(1000),
			dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 1, 2, 1))),
		}
		to := &net.UDPAddr{IP: net.IPv4bcast, Port: nclient4.ClientPort}
		switch renewal := !m.ClientIPAddr.IsUnspecified(); {
		case m.MessageType() == dhcpv4.MessageTypeDiscover:
			more = append(more, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer))
		case m.MessageType() != dhcpv4.MessageTypeRequest:
			continue
		case renewal && w.refuses.Load():
			more = append(more, dhcpv4.WithMessageType(dhcpv4.MessageTypeNak), dhcpv4.WithYourIP(net.IPv4zero))
		case renewal:
			to.IP = m.ClientIPAddr
		}
		answer, err := dhcpv4.NewReplyFromRequest(m, more...)
		if err != nil {
			continue
		}
		_, _ = conn.WriteTo(answer.ToBytes(), to)
	}
}

// lease gets the address and configures it.
func (w *wire) lease() *dhcpv4.DHCPv4 {
	w.t.Helper()
	ack, err := w.port.acquire(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pod.IPT(w.t, "addr add 10.1.2.3/24 dev eth0")
	return ack
}

// A chained tuning gives the interface another hardware address once it has its lease.
func TestPrivilegedRenewWithAnotherMAC(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	ack := w.lease()
	w.pod.IPT(t, "link set eth0 address 02:00:00:00:99:99")
	for _, rebind := range []bool{false, true} {
		got, err := w.port.renew(t.Context(), ack, rebind)
		if err != nil {
			t.Errorf("rebind %v: %v", rebind, err)
			continue
		}
		if mac := got.ClientHWAddr.String(); mac != "02:00:00:00:99:99" {
			t.Errorf("rebind %v: the server knows %s", rebind, mac)
		}
	}
}

// A server that refuses says so to everybody: the client may not use its address any more.
func TestPrivilegedRenewRefused(t *testing.T) { // not parallel: a process that another test starts holds the socket of the first renewal for a moment
	w := newWire(t)
	ack := w.lease()
	if _, err := w.port.renew(t.Context(), ack, false); err != nil {
		t.Fatal(err)
	}
	w.refuses.Store(true)
	for _, rebind := range []bool{false, true} {
		if _, err := w.port.renew(t.Context(), ack, rebind); !errors.Is(err, errNak) {
			t.Errorf("rebind %v: %v", rebind, err)
		}
	}
}

// An interface that cannot be looked for has not gone: its pod uses the address still.
func TestPrivilegedPresentWithoutFiles(t *testing.T) { // not parallel: changes a limit of the process
	w := newWire(t)
	ack := w.lease()
	free := fewFiles(t, 2) // the namespace and the one to return to
	err := w.port.present()
	s := newService(Options{StateDir: t.TempDir(), Timeout: time.Second}, log.NewNop())
	st := &state{Version: stateVersion, ContainerID: "c", Network: "n", IfName: "eth0", NetNS: w.port.netns, Inode: w.port.inode, IPAM: &ipamConfig{}, ACK: ack.ToBytes(), At: time.Now()}
	resumed := s.resumeOne(st)
	free()
	defer s.stop()
	if err == nil || errors.Is(err, errGone) {
		t.Errorf("without a file descriptor: %v", err)
	}
	if resumed != nil || len(s.leases) != 1 {
		t.Errorf("the next daemon drops the lease: %v", resumed)
	}
	w.port.ifname = "eth9"
	if err := w.port.present(); !errors.Is(err, errGone) {
		t.Errorf("no such interface: %v", err)
	}
}
