// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the connections of a server that anyone can reach, so that no crowd of clients keeps others out.
//
// A listener that stops accepting when it is full makes everyone wait behind whoever came first and says nothing. This one always
// accepts. A client is a stranger until the server knows it: by a complete request, a token or a certificate. A stranger too many
// displaces the one that came first, so a client that speaks at once is served. Strangers never displace clients that are known.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// Listener accepts every connection and keeps a bounded number of them.
type Listener struct {
	net.Listener

	mu               sync.Mutex
	strangers, known places
}

// places are connections in the order in which they came.
type places struct {
	list.List
	most int
}

// New keeps at most so many connections of strangers and of known clients at l.
func New(l net.Listener, strangers, known int) *Listener {
	return &Listener{Listener: l, strangers: places{most: strangers}, known: places{most: known}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &conn{Conn: c, listener: l}
	n.move(nil, &l.strangers)
	return n, nil
}

// conn is in one of the listener's lists until it is closed.
type conn struct {
	net.Conn

	listener *Listener
	in       *places // nil: closed
	place    *list.Element
}

// move puts a connection at the end of a list, if it is where from says, and closes the first one there if it is one too many.
func (c *conn) move(from, to *places) {
	c.listener.mu.Lock()
	if c.in != from {
		c.listener.mu.Unlock()
		return
	}
	c.leave()
	c.in, c.place = to, to.PushBack(c)
	var first *conn
	if to.Len() > to.most {
		first, _ = to.Front().Value.(*conn)
	}
	c.listener.mu.Unlock()
	if first != nil {
		_ = first.Close()
	}
}

// leave is called with the listener's lock.
func (c *conn) leave() {
	if c.in != nil {
		c.in.Remove(c.place)
		c.in = nil
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.leave()
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Known says that the server knows who is at a connection that a Listener has accepted.
func Known(c net.Conn) {
	if n, ok := c.(*conn); ok {
		n.move(&n.listener.strangers, &n.listener.known)
	}
}

type key struct{}

// Context is for http.Server.ConnContext, so that KnownHere finds the connection of a request.
func Context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// KnownHere is Known for the connection of a request.
func KnownHere(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(net.Conn); ok {
		Known(c)
	}
}
