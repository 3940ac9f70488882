// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pair is one connection, seen by the client and by the server.
type pair struct{ client, server net.Conn }

func connect(t *testing.T, l *Listener) pair {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return pair{c, s}
}

// open reports whether the server has kept a connection.
func (p pair) open(t *testing.T) bool {
	t.Helper()
	if err := p.client.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, p.client)
	var late net.Error
	return errors.As(err, &late) && late.Timeout()
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		inner, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		l := New(inner, 2, 2)
		expect := func(what string, p pair, want bool) {
			t.Helper()
			if p.open(t) != want {
				t.Errorf("%s, %s: open is %t", address, what, !want)
			}
		}
		friend := connect(t, l)
		Known(friend.server)
		a, b, c := connect(t, l), connect(t, l), connect(t, l)
		expect("the stranger who came first", a, false)
		expect("the second one", b, true)
		expect("the last one", c, true)
		Known(a.server) // closed already
		if l.known.Len() != 1 {
			t.Errorf("%d are known", l.known.Len())
		}
		_ = b.server.Close()
		_ = b.server.Close() // twice is no place more
		d := connect(t, l)
		expect("a stranger beside a free place", c, true)
		Known(c.server)
		Known(c.server)
		expect("a known client, while others become known", friend, true)
		Known(d.server)
		expect("the known client who came first", friend, false)
		for range 5 {
			connect(t, l)
		}
		expect("a known client beside many strangers", c, true)
		expect("another one", d, true)
		if s, k := l.strangers.Len(), l.known.Len(); s != 2 || k != 2 {
			t.Errorf("%d strangers, %d known", s, k)
		}
	}
	Known(&net.TCPConn{})  // of another listener
	KnownHere(t.Context()) // of no server
}
