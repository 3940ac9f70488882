// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// node is a network namespace with the devices, addresses and routes of a node:
// two uplinks, a bridge with pods, and a pod that is routed to. It exists so that
// the FIB and the socket tables have something real to say; no packet moves in it.
// It lives on one thread and ends with it.
type node struct {
	calls chan func()
	links map[string]rtnl.Link
	here  bool // the test's own goroutine is in the namespace, see enter
}

// uplink is a device out of the node.
type uplink struct {
	name   string
	mac    net.HardwareAddr
	router net.HardwareAddr // next hop's MAC; the walk writes it, the kernel need not know
	addr4  netip.Addr
	addr6  netip.Addr
	gw4    netip.Addr
	gw6    netip.Addr
}

// pod is one pod device of the node.
type pod struct {
	name  string
	owner uint64
	mac   net.HardwareAddr
	addr4 netip.Addr
	addr6 netip.Addr
	bits4 int
	bits6 int
	route string // device its packets are routed from
	gwMAC net.HardwareAddr
}

func mac(last ...byte) net.HardwareAddr {
	m := net.HardwareAddr{2, 0, 0, 0, 0, 0}
	copy(m[6-len(last):], last)
	return m
}

var (
	bridgeMAC = mac(0x0b, 1)

	upl0 = &uplink{
		name: "upl0", mac: mac(1, 1), router: mac(1, 0xfe),
		addr4: ip("192.0.2.1"), addr6: ip("2001:db8:1::1"), gw4: ip("192.0.2.254"), gw6: ip("2001:db8:1::fe"),
	}
	// Second addresses of upl0.
	second4, second6 = ip("192.0.2.2"), ip("2001:db8:1::2")

	upl1 = &uplink{
		name: "upl1", mac: mac(1, 2), router: mac(2, 0xfe),
		addr4: ip("198.51.100.1"), addr6: ip("2001:db8:2::1"), gw4: ip("198.51.100.254"), gw6: ip("2001:db8:2::fe"),
	}

	podA = &pod{
		name: "podA", owner: 0xa11ce, mac: mac(0xa, 2), addr4: ip("10.1.0.2"), addr6: ip("fd00:1::2"),
		bits4: 16, bits6: 64, route: "br0", gwMAC: bridgeMAC,
	}
	podB = &pod{
		name: "podB", owner: 0xb0b, mac: mac(0xa, 3), addr4: ip("10.1.0.3"), addr6: ip("fd00:1::3"),
		bits4: 16, bits6: 64, route: "br0", gwMAC: bridgeMAC,
	}
	// podC hangs on a device of its own, in a subnet of its own.
	podC = &pod{
		name: "podC", owner: 0xca401, mac: mac(0xc, 2), addr4: ip("10.2.0.2"), addr6: ip("fd00:2::2"),
		bits4: 24, bits6: 64, route: "podC", gwMAC: mac(0xc, 1),
	}
	allPods = []*pod{podA, podB, podC}

	// client is somewhere behind the router of upl0, far behind that of upl1.
	client4, client6 = ip("203.0.113.9"), ip("2001:db8:9::9")
	far4, far6       = ip("198.18.0.7"), ip("2001:db8:f::7")
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// addr returns the pod's address of a family (4 or 6).
func (p *pod) addr(family int) netip.Addr { return pick(family, p.addr4, p.addr6) }

func (u *uplink) addr(family int) netip.Addr { return pick(family, u.addr4, u.addr6) }

func (u *uplink) gateway(family int) netip.Addr { return pick(family, u.gw4, u.gw6) }

func pick[T any](family int, v4, v6 T) T {
	if family == 4 {
		return v4
	}
	return v6
}

// newNode makes the namespace; it goes with the test.
func newNode(tb testing.TB) *node {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("a network namespace and BPF need root")
	}
	n := &node{calls: make(chan func()), links: map[string]rtnl.Link{}}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		ready <- err
		if err != nil {
			return
		}
		for f := range n.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		tb.Fatalf("unshare network namespace: %v", err)
	}
	tb.Cleanup(func() { close(n.calls) })
	if err := n.do(n.build); err != nil {
		tb.Fatal(err)
	}
	return n
}

// do runs f on the node's thread.
func (n *node) do(f func() error) error {
	if n.here {
		return f()
	}
	done := make(chan error, 1)
	n.calls <- func() { done <- f() }
	return <-done
}

// enter moves the calling goroutine into the namespace until leave is called, so that do runs its function at once. It is for tests with
// so many packets that a change of threads for each counts.
func (n *node) enter(tb testing.TB) (leave func()) {
	tb.Helper()
	var inside *os.File
	if err := n.do(func() (err error) {
		inside, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	defer inside.Close()
	runtime.LockOSThread()
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		err = unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		tb.Fatal(err)
	}
	n.here = true
	return func() {
		n.here = false
		err := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET)
		_ = outside.Close()
		if err != nil {
			tb.Errorf("leave the node: %v", err) // the thread stays locked, and ends with the goroutine
			return
		}
		runtime.UnlockOSThread()
	}
}

func (n *node) build() error {
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0); err != nil {
			return err
		}
	}
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.SetUp(lo.Index); err != nil {
		return err
	}
	if err := h.AddBridge(rtnl.BridgeSpec{Name: "br0", MAC: bridgeMAC, Up: true}); err != nil {
		return err
	}
	if err := n.address(h, "br0", "10.1.0.1/16", "fd00:1::1/64"); err != nil {
		return err
	}
	for _, u := range []*uplink{upl0, upl1} {
		if err := n.addUplink(h, u); err != nil {
			return err
		}
		if err := n.know(u, true); err != nil {
			return err
		}
	}
	for _, p := range allPods {
		if err := n.addPod(h, p); err != nil {
			return err
		}
	}
	if err := n.routes(h); err != nil {
		return err
	}
	return ownAddresses(upl0.addr6, second6, upl1.addr6)
}

// ownAddresses waits until the FIB knows the node's IPv6 addresses as its own: the kernel adds their routes later, also without
// duplicate address detection.
func ownAddresses(addrs ...netip.Addr) error {
	deadline := time.Now().Add(netlab.Patient(5 * time.Second))
	for _, a := range addrs {
		for {
			routes, err := netlink.RouteGet(a.AsSlice())
			if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s is not the node's: %v, %w", a, routes, err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func (n *node) addUplink(h *rtnl.Handle, u *uplink) error {
	spec := rtnl.VethSpec{HostName: u.name, HostMAC: u.mac, HostUp: true, PeerName: "w" + u.name}
	if err := n.addVeth(h, spec); err != nil {
		return err
	}
	if u == upl0 {
		// The kernel prefers the IPv4 address that came first and the IPv6 address that came last.
		return n.address(h, u.name, u.addr4.String()+"/24", second4.String()+"/24", second6.String()+"/64", u.addr6.String()+"/64")
	}
	return n.address(h, u.name, u.addr4.String()+"/24", u.addr6.String()+"/64")
}

// know makes u's router a neighbour that need not be asked for, or an unknown one.
func (n *node) know(u *uplink, known bool) error {
	for _, family := range families {
		set := netlink.NeighDel
		if known {
			set = netlink.NeighSet
		}
		err := set(&netlink.Neigh{
			LinkIndex: n.index(u.name), Family: pick(family, unix.AF_INET, unix.AF_INET6), State: netlink.NUD_PERMANENT,
			IP: u.gateway(family).AsSlice(), HardwareAddr: u.router,
		})
		if err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", u.gateway(family), u.name, err)
		}
	}
	return nil
}

func (n *node) addPod(h *rtnl.Handle, p *pod) error {
	spec := rtnl.VethSpec{HostName: p.name, HostUp: true, PeerName: "i" + p.name, PeerMAC: p.mac}
	if p.route == p.name {
		spec.HostMAC = p.gwMAC
	} else {
		spec.Master = n.links[p.route].Index
	}
	return n.addVeth(h, spec)
}

func (n *node) addVeth(h *rtnl.Handle, spec rtnl.VethSpec) error {
	if err := h.AddVeth(spec); err != nil {
		return err
	}
	peer, err := h.LinkByName(spec.PeerName)
	if err != nil {
		return err
	}
	if err := h.SetUp(peer.Index); err != nil {
		return err
	}
	n.links[spec.HostName], err = h.LinkByName(spec.HostName)
	return err
}

func (n *node) address(h *rtnl.Handle, dev string, prefixes ...string) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return err
	}
	n.links[dev] = link
	for _, p := range prefixes {
		a := rtnl.Addr{LinkIndex: link.Index, Prefix: netip.MustParsePrefix(p)}
		if a.Prefix.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddAddr(a); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) routes(h *rtnl.Handle) error {
	far := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:f::/48")}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	routes := []rtnl.Route{
		{LinkIndex: n.index("podC"), Dst: netip.PrefixFrom(podC.addr4, 32), Scope: rtnl.ScopeLink},
		{LinkIndex: n.index("podC"), Dst: netip.PrefixFrom(podC.addr6, 128)},
	}
	for i, family := range []int{4, 6} {
		routes = append(routes,
			rtnl.Route{LinkIndex: n.index("upl0"), Dst: all[i], Gateway: upl0.gateway(family)},
			rtnl.Route{LinkIndex: n.index("upl1"), Dst: far[i], Gateway: upl1.gateway(family)})
	}
	for _, r := range routes {
		if err := h.AddRoute(r); err != nil {
			return err
		}
	}
	return nil
}

// index returns the ifindex of a device.
func (n *node) index(name string) int { return n.links[name].Index }
