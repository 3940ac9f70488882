// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

// awaitLocal waits for the host's own route to an address of a device: the kernel makes that of IPv6 a while after the address
// (addrconf_dad_work).
func awaitLocal(h *Handle, a netip.Addr, dev int) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if r, err := h.RouteTo(a, dev); err == nil && r.Type == unix.RTN_LOCAL {
			return
		}
	}
}

// The kernel's own decision about a packet, in both families: rules by mark, the host itself, no route, and by which device it came.
func TestPrivilegedAskRoute(t *testing.T) {
	ns := mustNS(t)
	h := mustHandle(t, ns)
	for _, name := range []string{"a", "b"} {
		ok(t, h.AddVeth(VethSpec{HostName: name, PeerName: name + "p"}))
		for _, end := range []string{name, name + "p"} {
			ok(t, h.SetUp(must[Link](t)(h.LinkByName(end)).Index))
		}
	}
	index := func(name string) int { return must[Link](t)(h.LinkByName(name)).Index }
	a, b := index("a"), index("b")
	for _, p := range []struct {
		dev  int
		addr string
	}{{a, "10.1.0.1/24"}, {b, "10.2.0.1/24"}, {a, "fd01::1/64"}, {b, "fd02::1/64"}} {
		ok(t, h.AddAddr(Addr{LinkIndex: p.dev, Prefix: netip.MustParsePrefix(p.addr), Flags: unix.IFA_F_NODAD}))
	}
	ok(t, h.AddRoute(Route{LinkIndex: b, Dst: netip.MustParsePrefix("192.0.2.0/24"), Gateway: netip.MustParseAddr("10.2.0.9")}))
	addr := netip.MustParseAddr
	awaitLocal(h, addr("fd01::1"), a)
	awaitLocal(h, addr("fd02::1"), b)
	for _, tt := range []struct {
		q    RouteQuery
		kind uint8
		dev  int
		hop  string
	}{
		{RouteQuery{Dst: addr("10.2.0.7")}, unix.RTN_UNICAST, b, ""},
		{RouteQuery{Dst: addr("192.0.2.7"), Proto: unix.IPPROTO_TCP, SrcPort: 40000, DstPort: 80}, unix.RTN_UNICAST, b, "10.2.0.9"},
		{RouteQuery{Dst: addr("10.1.0.1"), Src: addr("10.2.0.7"), In: b}, unix.RTN_LOCAL, 0, ""},
		{RouteQuery{Dst: addr("fd02::7")}, unix.RTN_UNICAST, b, ""},
		{RouteQuery{Dst: addr("fd01::1"), Src: addr("fd02::7"), In: b, Mark: 3}, unix.RTN_LOCAL, 0, ""},
		{RouteQuery{Dst: addr("fd02::7"), Src: addr("fd01::7"), In: a}, unix.RTN_UNICAST, b, ""},
	} {
		r, err := h.AskRoute(tt.q)
		if err != nil || r.Type != tt.kind || tt.dev != 0 && r.LinkIndex != tt.dev || tt.hop != "" && r.Gateway != addr(tt.hop) {
			t.Errorf("%+v: %+v, %v", tt.q, r, err)
		}
	}
	for _, dst := range []string{"198.51.100.1", "2001:db8::1"} {
		if _, err := h.AskRoute(RouteQuery{Dst: addr(dst)}); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: %v", dst, err)
		}
	}

	if _, err := h.Neighbour(a, addr("10.1.0.9")); !errors.Is(err, ErrNotFound) {
		t.Errorf("no neighbour: %v", err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, dst := range []string{"10.1.0.9", "fd01::9"} {
		addNeighbour(t, ns, "a", dst, mac)
		n, err := h.Neighbour(a, addr(dst))
		if err != nil || n.MAC.String() != mac.String() || !n.Reaches() || n.State&unix.NUD_PERMANENT == 0 {
			t.Errorf("%s: %+v, %v", dst, n, err)
		}
	}
}

// addNeighbour has ip(8) make an entry, so that another eye than this package's has written it.
func addNeighbour(t *testing.T, ns *netns.NS, dev, dst string, mac net.HardwareAddr) {
	t.Helper()
	ok(t, ns.Do(func() error {
		return exec.Command("ip", "neigh", "add", dst, "lladdr", mac.String(), "nud", "permanent", "dev", dev).Run()
	}))
}
