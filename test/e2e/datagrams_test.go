// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A process of the node has bound the port that a pod publishes, and names its peer with each datagram: what answers it is its own,
// everything else for the port is the pod's, as connection tracking has it.
func TestPrivilegedNodesOwnDatagrams(t *testing.T) {
	for _, b := range append([]backend{{"ebpf", `{"backend":"ebpf"}`}}, netfilterBackends()...) {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t)
			w.use(b)
			rt := w.runtime(net0())
			serve(t, w.add(rt, "web", udp(8080, 80)), "web", ":80")
			peer := w.add(rt, "peer")
			serve(t, peer, "peer", ":123")
			serve(t, w.Client(), "client", ":123")
			eachFamily(t, func(t *testing.T, fam family) {
				own := mustListen(t, w.Node, fam, 8080)
				t.Run("outside", func(t *testing.T) {
					ownDatagrams(t, fam, own, w.Client(), fam.client(w.Client()), fam.node(w.Client()), "client")
				})
				t.Run("pod", func(t *testing.T) {
					ownDatagrams(t, fam, own, peer, fam.pod(peer), netip.MustParseAddr(fam.gw), "peer")
				})
			})
		})
	}
}

func mustListen(t *testing.T, at place, fam family, port uint16) net.PacketConn {
	t.Helper()
	pc, err := at.ListenPacket("udp"+fam.suffix, netip.AddrPortFrom(netip.MustParseAddr(fam.any), port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	return pc
}

// ownDatagrams asks the server called name, at from, by the node's socket; and from where that server is, at other, the pod by the
// port that it publishes at the address node, before and after.
func ownDatagrams(t *testing.T, fam family, own net.PacketConn, other place, from, node netip.Addr, name string) {
	published := func(when string) {
		t.Helper()
		c, err := dial(other, "udp"+fam.suffix, "", at(node, 8080))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer c.Close()
		if c.answer.name != "web" {
			t.Errorf("%s: at the published port answers %s", when, c.answer.name)
		}
	}
	published("before")
	for _, size := range []int{5, 4000} { // the second one goes in fragments, and so does its answer
		if _, err := own.WriteTo(bytes.Repeat([]byte("?"), size), net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 123))); err != nil {
			t.Fatal(err)
		}
		_ = own.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 2*size+200)
		n, by, err := own.ReadFrom(buf)
		if err != nil {
			t.Fatalf("the node's process gets no answer: %v", err)
		}
		if unmapped(by) != netip.AddrPortFrom(from, 123) || !strings.HasPrefix(string(buf[:n]), name+" ") {
			t.Errorf("%s answers %q", by, buf[:min(n, 100)])
		}
	}
	published("after")
}
