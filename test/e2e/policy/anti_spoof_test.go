// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// sent tells whether a datagram from local reaches a listener at to.
func sent(t testing.TB, from e2etest.Place, network, local string, listener net.PacketConn, to netip.AddrPort, word string) bool {
	t.Helper()
	c, err := from.DialFrom(t.Context(), network, local, to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
	}
	if err := listener.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for {
		n, _, err := listener.ReadFrom(buf)
		if err != nil {
			return false
		}
		if string(buf[:n]) == word {
			return true
		}
	}
}

// What a pod sends with an address that is not its own goes nowhere, and is
// counted; its own traffic is not disturbed.
func TestPrivilegedSpoofedAddress(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p, other := w.AddPod(rt, "bad"), w.AddPod(rt, "other")
	e2etest.MustRun(t, p, "ip addr add 10.1.0.200/16 dev eth0")
	e2etest.MustRun(t, p, "ip addr add fd00:10:1::dead/64 dev eth0 nodad")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		stolen := map[string]string{"4": "10.1.0.200", "6": "fd00:10:1::dead"}[fam.Suffix]
		for _, x := range []struct {
			name string
			at   e2etest.Place
			addr netip.Addr
		}{{"client", w.Client(), fam.Client(w.Client())}, {"sibling", other, fam.Pod(other)}, {"node", w.Node, fam.Node(w.Client())}} {
			t.Run(x.name, func(t *testing.T) {
				l, err := x.at.ListenPacket("udp"+fam.Suffix, e2etest.At(x.addr, 9000))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				to := netip.AddrPortFrom(x.addr, 9000)
				// The honest one first: it finds out the neighbour's MAC, which a
				// solicitation from the stolen address could not.
				if !sent(t, p, "udp"+fam.Suffix, e2etest.At(fam.Pod(p), 0), l, to, "first") {
					t.Errorf("a datagram from %s did not arrive", fam.Pod(p))
				}
				before := w.Counters(t, p)
				if sent(t, p, "udp"+fam.Suffix, net.JoinHostPort(stolen, "0"), l, to, "stolen") {
					t.Errorf("a datagram from %s arrived", stolen)
				}
				if after := w.Counters(t, p); after.Drops < before.Drops+3 {
					t.Errorf("%d drops counted, want at least 3", after.Drops-before.Drops)
				}
				if !sent(t, p, "udp"+fam.Suffix, e2etest.At(fam.Pod(p), 0), l, to, "honest") {
					t.Errorf("a datagram from %s did not arrive", fam.Pod(p))
				}
			})
		}
	})
}

// What a pod sends from a MAC that is not its own goes nowhere.
func TestPrivilegedSpoofedMAC(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "bad")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	to := e2etest.At(e2etest.Families()[0].Client(w.Client()), 9000)
	e2etest.Ask(t, p, "udp4", to)
	mac := p.MAC()
	// The node is told where the false MAC is, so nothing but the check stops it.
	e2etest.MustRun(t, p, "ip link set eth0 address 02:00:00:00:be:ef")
	before := w.Counters(t, p)
	e2etest.AssertNoAnswer(t, p, "udp4", to)
	if after := w.Counters(t, p); after.Drops == before.Drops {
		t.Error("no drop counted")
	}
	e2etest.MustRun(t, p, "ip link set eth0 address "+mac)
	e2etest.Eventually(t, 5*time.Second, func() error {
		c, err := e2etest.Dial(p, "udp4", "", to)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// A node whose operator says so lets other addresses pass.
func TestPrivilegedAntiSpoofOff(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"antiSpoof": false}`)
	rt := w.Runtime(e2etest.Net0())
	p, other := w.AddPod(rt, "router"), w.AddPod(rt, "other")
	e2etest.MustRun(t, p, "ip addr add 10.1.0.200/16 dev eth0")
	l, err := other.ListenPacket("udp4", e2etest.At(other.IP4, 9000))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !sent(t, p, "udp4", "10.1.0.200:0", l, netip.AddrPortFrom(other.IP4, 9000), "lent") {
		t.Error("a datagram from another address did not arrive although antiSpoof is off")
	}
}

// The tuning plugin may give a pod another MAC, and the check follows.
func TestPrivilegedTunedMACPasses(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Network{Plugins: []string{"tuning", "portmap", "firewall"}})
	p := w.NewPod(rt, "web", e2etest.TCP(8080, 80))
	p.Attachment.Capabilities["mac"] = "02:11:22:33:44:55"
	p.MustAdd()
	e2etest.Serve(t, p, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8080))
		e2etest.Ask(t, p, "tcp", e2etest.At(fam.Client(w.Client()), 9000))
		e2etest.Ask(t, w.Node, "tcp", e2etest.At(fam.Pod(p), 80))
	})
	if err := p.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}
