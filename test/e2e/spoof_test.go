// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// sent tells whether a datagram from local reaches a listener at to.
func sent(t testing.TB, from place, network, local string, listener net.PacketConn, to netip.AddrPort, word string) bool {
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
	w := newWorld(t)
	rt := w.runtime(net0())
	p, other := w.add(rt, "bad"), w.add(rt, "other")
	sh(t, p, "ip addr add 10.1.0.200/16 dev eth0")
	sh(t, p, "ip addr add fd00:10:1::dead/64 dev eth0 nodad")
	eachFamily(t, func(t *testing.T, fam family) {
		stolen := map[string]string{"4": "10.1.0.200", "6": "fd00:10:1::dead"}[fam.suffix]
		for _, x := range []struct {
			name string
			at   place
			addr netip.Addr
		}{{"client", w.Client(), fam.client(w.Client())}, {"sibling", other, fam.pod(other)}, {"node", w.Node, fam.node(w.Client())}} {
			t.Run(x.name, func(t *testing.T) {
				l, err := x.at.ListenPacket("udp"+fam.suffix, at(x.addr, 9000))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				to := netip.AddrPortFrom(x.addr, 9000)
				// The honest one first: it finds out the neighbour's MAC, which a
				// solicitation from the stolen address could not.
				if !sent(t, p, "udp"+fam.suffix, at(fam.pod(p), 0), l, to, "first") {
					t.Errorf("a datagram from %s did not arrive", fam.pod(p))
				}
				before := w.counters(t, p)
				if sent(t, p, "udp"+fam.suffix, net.JoinHostPort(stolen, "0"), l, to, "stolen") {
					t.Errorf("a datagram from %s arrived", stolen)
				}
				if after := w.counters(t, p); after.Drops < before.Drops+3 {
					t.Errorf("%d drops counted, want at least 3", after.Drops-before.Drops)
				}
				if !sent(t, p, "udp"+fam.suffix, at(fam.pod(p), 0), l, to, "honest") {
					t.Errorf("a datagram from %s did not arrive", fam.pod(p))
				}
			})
		}
	})
}

// What a pod sends from a MAC that is not its own goes nowhere.
func TestPrivilegedSpoofedMAC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "bad")
	serve(t, w.Client(), "client", ":9000")
	to := at(families()[0].client(w.Client()), 9000)
	ask(t, p, "udp4", to)
	mac := p.mac()
	// The node is told where the false MAC is, so nothing but the check stops it.
	sh(t, p, "ip link set eth0 address 02:00:00:00:be:ef")
	before := w.counters(t, p)
	refused(t, p, "udp4", to)
	if after := w.counters(t, p); after.Drops == before.Drops {
		t.Error("no drop counted")
	}
	sh(t, p, "ip link set eth0 address "+mac)
	eventually(t, 5*time.Second, func() error {
		c, err := dial(p, "udp4", "", to)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// A node whose operator says so lets other addresses pass.
func TestPrivilegedAntiSpoofOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"antiSpoof": false}`)
	rt := w.runtime(net0())
	p, other := w.add(rt, "router"), w.add(rt, "other")
	sh(t, p, "ip addr add 10.1.0.200/16 dev eth0")
	l, err := other.ListenPacket("udp4", at(other.IP4, 9000))
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
	w := newWorld(t)
	rt := w.runtime(network{plugins: []string{"tuning", "portmap", "firewall"}})
	p := w.newPod(rt, "web", tcp(8080, 80))
	p.att.Capabilities["mac"] = "02:11:22:33:44:55"
	p.mustAdd()
	serve(t, p, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachFamily(t, func(t *testing.T, fam family) {
		ask(t, w.Client(), "tcp", at(fam.node(w.Client()), 8080))
		ask(t, p, "tcp", at(fam.client(w.Client()), 9000))
		ask(t, w.Node, "tcp", at(fam.pod(p), 80))
	})
	if err := p.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}
