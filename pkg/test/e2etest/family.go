// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Family is IPv4 or IPv6, for tests that hold for both.
type Family struct {
	Name    string
	Suffix  string // of Go's network names: "4", "6"
	of      func([]netip.Prefix) netip.Addr
	Pod     func(*Pod) netip.Addr
	Gateway string // of net0
	Any     string // to listen on
}

// Families are IPv4 and IPv6, in this order.
func Families() []Family {
	return []Family{
		{"IPv4", "4", netlab.IP4, func(p *Pod) netip.Addr { return p.IP4 }, "10.1.0.1", "0.0.0.0"},
		{"IPv6", "6", netlab.IP6, func(p *Pod) netip.Addr { return p.IP6 }, "fd00:10:1::1", "::"},
	}
}

// EachFamily runs f once for IPv4 and once for IPv6.
func EachFamily(t *testing.T, f func(t *testing.T, fam Family)) {
	t.Helper()
	for _, fam := range Families() {
		t.Run(fam.Name, func(t *testing.T) { f(t, fam) })
	}
}

// EachTransport runs f for TCP and UDP in both families.
func EachTransport(t *testing.T, f func(t *testing.T, fam Family, proto string)) {
	t.Helper()
	EachFamily(t, func(t *testing.T, fam Family) {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(proto, func(t *testing.T) { f(t, fam, proto) })
		}
	})
}

// Node returns the node's address on a client's uplink.
func (f Family) Node(c *netlab.Client) netip.Addr { return f.of(c.Uplink.Node) }

// Client returns a client's own address.
func (f Family) Client(c *netlab.Client) netip.Addr { return f.of(c.Uplink.Client) }

// Loopback returns 127.0.0.1 or ::1.
func (f Family) Loopback() netip.Addr {
	if f.Suffix == "4" {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// At is an address and a port as Go's network functions take them.
func At(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// NthAddr is p's address whose last byte is n.
func NthAddr(p netip.Prefix, n byte) string {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] = n
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// NoDAD is what "ip addr add" takes for an IPv6 address that need not be checked, with
// the space before it.
func NoDAD(v6 bool) string {
	if v6 {
		return " nodad"
	}
	return ""
}

// Sockaddr is an address and a port for raw system calls.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
