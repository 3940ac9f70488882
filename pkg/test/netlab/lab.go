// SPDX-License-Identifier: Apache-2.0

// Package netlab makes a small world for tests, the demo and the benchmarks: a
// node with pods, and one or more clients that reach it over a veth uplink.
//
// The node is a network namespace and a mount namespace of its own, with its
// own bpffs, sysfs, /run, /var/lib/cni, /etc/sluice and /etc/cni. Nothing the
// package does, and nothing a CNI plugin run inside the node does, reaches the
// host's network, bpffs or files. No namespace has a name on the host: all of
// them go away when their last file descriptor, thread and process does, so a
// test that is killed leaves nothing either.
//
// It needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and the ip(8) program. ip is
// used on purpose instead of our own netlink code: what the plugins made is
// judged by an independent eye.
package netlab

import (
	"errors"
	"fmt"
	"net/netip"
)

// Options say what the world looks like. The zero value is one client on one
// dual-stack uplink, default routes both ways, forwarding off on the node as
// after boot.
type Options struct {
	// Uplinks has one entry for each client. Empty means DefaultUplink(0).
	Uplinks []Uplink
	// ForwardIPv4 and ForwardIPv6 turn forwarding on before the first plugin
	// runs. Off, the plugins have to do it, as on a fresh node.
	ForwardIPv4, ForwardIPv6 bool
	// NoNodeDefaultRoute leaves the node without default routes; otherwise they
	// point to the first client.
	NoNodeDefaultRoute bool
	// NoClientDefaultRoute leaves the clients without default routes, so they
	// reach the node's own addresses only. Otherwise they point to the node,
	// and a client can send to a pod's address as well.
	NoClientDefaultRoute bool
}

// Uplink is a veth between the node and a client of its own.
type Uplink struct {
	// Name of the device on the node ("eth0"). On the client it is always eth0.
	Name string
	// Node and Client are the addresses of the two ends. Addresses of one
	// family share a subnet.
	Node, Client []netip.Prefix
	// MTU of both ends, 0 for the kernel's default.
	MTU int
}

// DefaultUplink returns the i-th uplink of the lab's addressing plan: device
// eth<i>, 192.0.2.0/24 and 2001:db8:1::/64 for i = 0, 198.51.100.0/24 and
// 2001:db8:2::/64 for i = 1, 203.0.113.0/24 and 2001:db8:3::/64 for i = 2
// (the documentation ranges of RFC 5737 and RFC 3849); the node is .1, the
// client .2. It panics for any other i.
func DefaultUplink(i int) Uplink {
	v4 := []string{"192.0.2", "198.51.100", "203.0.113"}[i]
	v6 := fmt.Sprintf("2001:db8:%d::", i+1)
	prefixes := func(host int) []netip.Prefix {
		return []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("%s.%d/24", v4, host)),
			netip.MustParsePrefix(fmt.Sprintf("%s%d/64", v6, host)),
		}
	}
	return Uplink{Name: fmt.Sprintf("eth%d", i), Node: prefixes(1), Client: prefixes(2)}
}

// IP4 returns the first IPv4 address of a list, or the zero Addr.
func IP4(ps []netip.Prefix) netip.Addr { return firstAddr(ps, netip.Addr.Is4) }

// IP6 returns the first IPv6 address of a list, or the zero Addr.
func IP6(ps []netip.Prefix) netip.Addr { return firstAddr(ps, netip.Addr.Is6) }

func firstAddr(ps []netip.Prefix, is func(netip.Addr) bool) netip.Addr {
	for _, p := range ps {
		if is(p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// Client is a namespace at the far end of an uplink. It shares the caller's
// mount namespace: it is a place to open sockets from, not a machine.
type Client struct {
	*NS
	// Uplink is what it hangs on: Uplink.Node are the node's addresses as this
	// client sees them, Uplink.Client its own.
	Uplink Uplink
}

// Lab is a node with its clients. The caller must Close it.
type Lab struct {
	Node    *Node
	Clients []*Client
}

// New makes the world that o describes. On an error nothing is left.
func New(o Options) (_ *Lab, err error) {
	if len(o.Uplinks) == 0 {
		o.Uplinks = []Uplink{DefaultUplink(0)}
	}
	l := &Lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.Node, err = NewNode(); err != nil {
		return nil, err
	}
	for i, u := range o.Uplinks {
		c, err := l.addClient(u, o)
		if err != nil {
			return nil, fmt.Errorf("client %d: %w", i, err)
		}
		l.Clients = append(l.Clients, c)
	}
	if err := l.Node.setForwarding(o.ForwardIPv4, o.ForwardIPv6); err != nil {
		return nil, err
	}
	return l, nil
}

// Client returns the first client, which most scenarios need only.
func (l *Lab) Client() *Client { return l.Clients[0] }

// Close drops this process's hold on the namespaces. Processes still running
// inside keep theirs alive: end them first. Closing twice is fine.
func (l *Lab) Close() error {
	var errs []error
	for _, c := range l.Clients {
		errs = append(errs, c.Close())
	}
	if l.Node != nil {
		errs = append(errs, l.Node.Close())
	}
	return errors.Join(errs...)
}

// addClient makes a client and joins it to the node by u.
func (l *Lab) addClient(u Uplink, o Options) (_ *Client, err error) {
	ns, err := NewNetns("client-" + u.Name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ns.Close())
		}
	}()
	c := &Client{NS: ns, Uplink: u}
	if err := c.Do(prepareClient); err != nil {
		return nil, err
	}
	if err := joinUplink(l.Node.NS, c); err != nil {
		return nil, err
	}
	if !o.NoClientDefaultRoute {
		if err := c.defaultRoutes("eth0", u.Node); err != nil {
			return nil, err
		}
	}
	if !o.NoNodeDefaultRoute && len(l.Clients) == 0 {
		if err := l.Node.defaultRoutes(u.Name, u.Client); err != nil {
			return nil, err
		}
	}
	return c, nil
}
