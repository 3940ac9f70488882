// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// record is what the receivers of one lab have seen.
type record struct {
	mu    sync.Mutex
	seen  map[string]string    // what was seen of a message or of a connection's end
	ports map[int][]uint16     // the source ports under which servers saw a connection, in the order in which they came
	peers map[int]peer         // where the last datagram of a connection came to, and from whom
	tcp   map[int]*net.TCPConn // the servers' ends of connections
	at    map[int]string       // the place of the server that got something last
	rung  chan struct{}        // has an element after a change
}

// peer is the other end of a UDP conversation, as the server has it.
type peer struct {
	server net.PacketConn
	client netip.AddrPort
}

func newRecord() *record {
	return &record{
		seen: map[string]string{}, ports: map[int][]uint16{}, peers: map[int]peer{}, tcp: map[int]*net.TCPConn{}, at: map[int]string{}, rung: make(chan struct{}, 1),
	}
}

// note adds what was seen. A second message of the same key makes another value: no datagram may come twice.
func (r *record) note(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.seen[key]; ok {
		value = was + ", then " + value
	}
	r.seen[key] = value
	select {
	case r.rung <- struct{}{}:
	default:
	}
}

// some returns what is known of keys.
func (r *record) some(keys []string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for _, k := range keys {
		if v, ok := r.seen[k]; ok {
			out[k] = v
		}
	}
	return out
}

// source words the source of a message that a server got. Ports that a masquerade chose differ between the labs, so the port is told by its
// place among all that were seen of this connection: a server of either lab must see another one with the same message.
func (r *record) source(conn int, from netip.AddrPort, kept bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.ports[conn], from.Port())
	if at < 0 {
		at = len(r.ports[conn])
		r.ports[conn] = append(r.ports[conn], from.Port())
	}
	which := fmt.Sprintf("port %d of its own", at)
	if kept {
		which = fmt.Sprintf("the client's port (%d)", at)
	}
	return fmt.Sprintf("%s, %s", from.Addr(), which)
}

// serverOf is the place where a connection's messages come to.
func (r *record) serverOf(c *conn) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at[c.id]
}

// serverAddr is the address that a UDP connection's last datagram came to, the zero Addr if none came.
func (r *record) serverAddr(c *conn) netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[c.id]; p.server != nil {
		return p.server.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// endOf words the error that ended a connection.
func endOf(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return "end"
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	}
	return err.Error()
}

// The keys of a record: a message, and the ends of a connection.
func messageKey(step int) string { return fmt.Sprintf("message %d", step) }
func replyKey(step int) string   { return fmt.Sprintf("echo reply %d", step) }
func openKey(conn int) string    { return fmt.Sprintf("connection %d opens", conn) }
func endKey(conn int, server bool) string {
	if server {
		return fmt.Sprintf("connection %d, server's end", conn)
	}
	return fmt.Sprintf("connection %d, client's end", conn)
}
