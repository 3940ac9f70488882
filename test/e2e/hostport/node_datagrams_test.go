// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// A process of the node has bound the port that a pod publishes, and names its peer with each datagram: what answers it is its own,
// everything else for the port is the pod's, as connection tracking has it.
func TestPrivilegedNodesOwnDatagrams(t *testing.T) {
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{"backend":"ebpf"}`}}, e2etest.NetfilterBackends()...) {
		t.Run(b.Name, func(t *testing.T) {
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			rt := w.Runtime(e2etest.Net0())
			e2etest.Serve(t, w.AddPod(rt, "web", e2etest.UDP(8080, 80)), "web", ":80")
			peer := w.AddPod(rt, "peer")
			e2etest.Serve(t, peer, "peer", ":123")
			e2etest.Serve(t, w.Client(), "client", ":123")
			e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
				own := mustListen(t, w.Node, fam, 8080)
				t.Run("outside", func(t *testing.T) {
					ownDatagrams(t, fam, own, w.Client(), fam.Client(w.Client()), fam.Node(w.Client()), "client")
				})
				t.Run("pod", func(t *testing.T) {
					ownDatagrams(t, fam, own, peer, fam.Pod(peer), netip.MustParseAddr(fam.Gateway), "peer")
				})
			})
		})
	}
}

func mustListen(t *testing.T, at e2etest.Place, fam e2etest.Family, port uint16) net.PacketConn {
	t.Helper()
	pc, err := at.ListenPacket("udp"+fam.Suffix, netip.AddrPortFrom(netip.MustParseAddr(fam.Any), port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	return pc
}

// ownDatagrams asks the server called name, at from, by the node's socket; and from where that server is, at other, the pod by the
// port that it publishes at the address node, before and after.
func ownDatagrams(t *testing.T, fam e2etest.Family, own net.PacketConn, other e2etest.Place, from, node netip.Addr, name string) {
	published := func(when string) {
		t.Helper()
		c, err := e2etest.Dial(other, "udp"+fam.Suffix, "", e2etest.At(node, 8080))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer c.Close()
		if c.Answer.Server != "web" {
			t.Errorf("%s: at the published port answers %s", when, c.Answer.Server)
		}
	}
	published("before")
	for _, size := range []int{5, 4000} { // the second one goes in fragments, and so does its answer
		if _, err := own.WriteTo(bytes.Repeat([]byte("?"), size), net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 123))); err != nil {
			t.Fatal(err)
		}
		_ = own.SetReadDeadline(time.Now().Add(e2etest.AnswerTimeout))
		buf := make([]byte, 2*size+200)
		n, by, err := own.ReadFrom(buf)
		if err != nil {
			t.Fatalf("the node's process gets no answer: %v", err)
		}
		if e2etest.Unmapped(by) != netip.AddrPortFrom(from, 123) || !strings.HasPrefix(string(buf[:n]), name+" ") {
			t.Errorf("%s answers %q", by, buf[:min(n, 100)])
		}
	}
	published("after")
}
