// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"net"
	"net/netip"
	"sync"
)

// fair is a listener that gives one host a part of the places only: before the handshake a client may be anyone, and each
// connection keeps a place for that long.
type fair struct {
	net.Listener

	mu    sync.Mutex
	conns map[netip.Prefix]int
}

func newFair(l net.Listener) *fair { return &fair{Listener: l, conns: map[netip.Prefix]int{}} }

// hostOf is the client's address; of IPv6 the network, in which a client can have any address.
func hostOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // an address of that family has so many
	return p
}

// Accept closes the connections of a host that has its part, and waits for another one.
func (f *fair) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(c.RemoteAddr())
		f.mu.Lock()
		full := f.conns[host] >= maxOneHost
		if !full {
			f.conns[host]++
		}
		f.mu.Unlock()
		if !full {
			return &counted{Conn: c, end: sync.OnceFunc(func() { f.leave(host) })}, nil
		}
		_ = c.Close()
	}
}

func (f *fair) leave(host netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns[host]--; f.conns[host] == 0 {
		delete(f.conns, host)
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn

	end func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}
