// SPDX-License-Identifier: Apache-2.0

package socklb

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A tenant may name any address as hostIP. Processes of the node that ask another host still get that host.
func TestPrivilegedLocalHostIPOfAnotherHost(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	wantNotThePod(t, w, w.Client(), func(fam e2etest.Family) netip.Addr { return fam.Client(w.Client()) })
}

// The same holds for a service of the node on a dummy device, such as a resolver. Its address does not stand for the node.
func TestPrivilegedLocalHostIPOfDummyDevice(t *testing.T) {
	t.Parallel()
	require.Link(t, "dummy")
	w := e2etest.NewWorld(t)
	e2etest.MustRun(t, w.Node, "ip link add nodelocaldns type dummy")
	for _, fam := range e2etest.Families() {
		a := e2etest.VirtualIP(fam)
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev nodelocaldns%s", a, a.BitLen(), e2etest.NoDAD(a.Is6())))
	}
	e2etest.MustRun(t, w.Node, "ip link set nodelocaldns up")
	wantNotThePod(t, w, w.Node, e2etest.VirtualIP)
}

// wantNotThePod serves in place on the port 9090 of an address, which a pod publishes. Processes of the node must get place.
func wantNotThePod(t *testing.T, w *e2etest.World, place e2etest.Place, addr func(e2etest.Family) netip.Addr) {
	t.Helper()
	var ports []e2etest.PortMapping
	for _, fam := range e2etest.Families() {
		e2etest.ServeFamily(t, place, fam.Suffix, "service", e2etest.At(addr(fam), 9090))
		ports = append(ports, e2etest.TCP(9090, 80).OnAddress(addr(fam)), e2etest.UDP(9090, 80).OnAddress(addr(fam)))
	}
	rogue := w.AddPod(w.Runtime(e2etest.Net0()), "rogue", ports...)
	e2etest.Serve(t, rogue, "rogue", ":80")
	e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		to := e2etest.At(addr(fam), 9090)
		c, err := e2etest.Dial(w.Node, proto, "", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Answer.Server != "service" || c.RemoteAddr().String() != to {
			t.Errorf("asked %s, answered by %s as %s", to, c.Answer.Server, c.RemoteAddr())
		}
		if proto == "udp" {
			wantUnconnected(t, w, fam, addr(fam), "service")
		}
	})
}

// wantUnconnected sends to port 9090 of addr without connecting, and wants the answer of want.
func wantUnconnected(t *testing.T, w *e2etest.World, fam e2etest.Family, addr netip.Addr, want string) {
	t.Helper()
	pc, err := w.Node.ListenPacket("udp"+fam.Suffix, net.JoinHostPort(fam.Any, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	if err := pc.SetDeadline(time.Now().Add(e2etest.AnswerTimeout)); err != nil {
		t.Fatal(err)
	}
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 9090))
	if _, err := pc.WriteTo([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n, from, err := pc.ReadFrom(buf)
	if err != nil || from.String() != to.String() || !hasPrefix(buf[:n], want) {
		t.Errorf("sent to %s, answered from %v: %q (%v); want %s", to, from, buf[:n], err, want)
	}
}

// A hostIP that comes to the node later, such as that of a standby, is the pod's for processes of the node from the next look on.
func TestPrivilegedLocalHostIPArrives(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	var ports []e2etest.PortMapping
	for _, fam := range e2etest.Families() {
		ports = append(ports, e2etest.TCP(9090, 80).OnAddress(e2etest.VirtualIP(fam)), e2etest.UDP(9090, 80).OnAddress(e2etest.VirtualIP(fam)))
	}
	e2etest.Serve(t, w.AddPod(w.Runtime(e2etest.Net0()), "web", ports...), "web", ":80")
	change := func(verb string) {
		for _, fam := range e2etest.Families() {
			a := e2etest.VirtualIP(fam)
			e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr %s %s/%d dev eth0%s", verb, a, a.BitLen(), e2etest.NoDAD(a.Is6() && verb == "add")))
		}
		e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
	}
	change("add")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, w.Node, proto, e2etest.At(e2etest.VirtualIP(fam), 9090)); got.Server != "web" {
			t.Errorf("answered by %s, want web", got.Server)
		}
	})
	change("del")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertNoAnswer(t, w.Node, proto, e2etest.At(e2etest.VirtualIP(fam), 9090))
	})
}
