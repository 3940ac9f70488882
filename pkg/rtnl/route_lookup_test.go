// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A lookup finds what the kernel's tables have, in both families.
func TestPrivilegedRouteTo(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	for _, name := range []string{"a", "b", "c", "d"} {
		ok(t, h.AddVeth(VethSpec{HostName: name, PeerName: name + "p"}))
		for _, end := range []string{name, name + "p"} {
			ok(t, h.SetUp(must[Link](t)(h.LinkByName(end)).Index))
		}
	}
	index := func(name string) int { return must[Link](t)(h.LinkByName(name)).Index }
	a, b, c := index("a"), index("b"), index("c")
	for _, p := range []string{"10.1.0.5/16", "fd00::5/64"} {
		ok(t, h.AddAddr(Addr{LinkIndex: a, Prefix: netip.MustParsePrefix(p), Flags: unix.IFA_F_NODAD}))
	}
	for _, p := range []string{"10.5.0.1/32", "fd05::1/128"} { // as the gateway of pods on point-to-point links
		for _, dev := range []int{b, c} {
			ok(t, h.AddAddr(Addr{LinkIndex: dev, Prefix: netip.MustParsePrefix(p), Flags: unix.IFA_F_NODAD}))
		}
	}
	for _, p := range []string{"10.5.0.2/32", "fd05::2/128"} {
		ok(t, h.AddOnlyRoute(Route{LinkIndex: b, Dst: netip.MustParsePrefix(p), Scope: ScopeLink}))
	}
	for _, p := range []string{"203.0.113.0/24", "2001:db8:9::/64"} {
		ok(t, h.AddRoute(Route{Dst: netip.MustParsePrefix(p), Type: unix.RTN_BLACKHOLE}))
	}
	awaitLocal(h, netip.MustParseAddr("fd00::5"), a)
	for _, dev := range []int{b, c} {
		awaitLocal(h, netip.MustParseAddr("fd05::1"), dev)
	}
	look := func(addr string, dev int, want Route) {
		t.Helper()
		got, err := h.RouteTo(netip.MustParseAddr(addr), dev)
		if want.Dst == (netip.Prefix{}) {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s by %d: %+v %v, want none", addr, dev, got, err)
			}
			return
		}
		ok(t, err)
		if got.LinkIndex != want.LinkIndex || got.Dst != want.Dst || got.Type != want.Type {
			t.Errorf("%s by %d: %+v, want %+v", addr, dev, got, want)
		}
	}
	route := func(dev int, kind uint8, dst string) Route {
		return Route{LinkIndex: dev, Type: kind, Dst: netip.MustParsePrefix(dst)}
	}
	var none Route
	for _, f := range []struct{ own, gateway, pod, net, other, away, blackhole string }{
		{"10.1.0.5/32", "10.5.0.1/32", "10.5.0.2/32", "10.1.0.0/16", "10.1.0.6", "240.0.0.1", "203.0.113.1"},
		{"fd00::5/128", "fd05::1/128", "fd05::2/128", "fd00::/64", "fd00::6", "2001:db8::1", "2001:db8:9::1"},
	} {
		addr := func(p string) string { return netip.MustParsePrefix(p).Addr().String() }
		look(addr(f.own), 0, route(a, unix.RTN_LOCAL, f.own))
		look(addr(f.pod), 0, route(b, unix.RTN_UNICAST, f.pod))
		look(f.other, 0, route(a, unix.RTN_UNICAST, f.net))
		look(f.other, c, none)
		look(f.away, 0, none)
		look(f.away, c, none)
		look(f.blackhole, 0, none)
		dst := "0.0.0.0/0"
		if netip.MustParseAddr(f.away).Is6() {
			dst = "::/0"
		}
		ok(t, h.AddRoute(Route{LinkIndex: c, Dst: netip.MustParsePrefix(dst), Scope: ScopeLink}))
		look(f.away, 0, route(c, unix.RTN_UNICAST, dst))
		look(f.away, c, route(c, unix.RTN_UNICAST, dst))
		look(f.away, a, none)
		// The address stays while one device has it.
		look(addr(f.gateway), 0, route(b, unix.RTN_LOCAL, f.gateway))
		ok(t, h.DelAddr(Addr{LinkIndex: b, Prefix: netip.MustParsePrefix(f.gateway)}))
		look(addr(f.gateway), 0, route(c, unix.RTN_LOCAL, f.gateway))
	}
	if _, err := h.RouteTo(netip.MustParseAddr("10.1.0.6"), 999); !errors.Is(err, ErrNotFound) {
		t.Errorf("by a device that does not exist: %v", err)
	}
}
