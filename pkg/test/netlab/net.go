// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// A socket stays in the namespace of the thread that made it, so the functions
// below enter the namespace only to make the socket. Addresses must be
// literals: resolving a name would leave the thread.

// Listen is net.Listen inside the namespace.
func (n *NS) Listen(network, addr string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen(network, addr)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket inside the namespace.
func (n *NS) ListenPacket(network, addr string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = net.ListenPacket(network, addr)
		return err
	})
	return c, err
}

// DialContext connects from inside the namespace. It fits http.Transport.
func (n *NS) DialContext(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = n.Do(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// DialFrom is DialContext from a given local address ("" for any, ":0" style
// ports allowed), for tests that need a certain source.
func (n *NS) DialFrom(ctx context.Context, network, local, addr string) (c net.Conn, err error) {
	d := net.Dialer{}
	switch network {
	case "udp", "udp4", "udp6":
		d.LocalAddr, err = net.ResolveUDPAddr(network, local)
	default:
		d.LocalAddr, err = net.ResolveTCPAddr(network, local)
	}
	if err != nil {
		return nil, err
	}
	err = n.Do(func() error {
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// HTTPClient returns a client whose connections start inside the namespace, a
// new one for each request. The timeout is Patient's.
func (n *NS) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:   Patient(timeout),
		Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true},
	}
}

// ServeHTTP serves h on a TCP address inside the namespace until stop is
// called. It returns once the address accepts connections.
func (n *NS) ServeHTTP(addr string, h http.Handler) (stop func() error, err error) {
	l, err := n.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: serve http: %w", n.Name, err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	return func() error {
		err := srv.Close()
		if e := <-done; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}

// ServeTCP accepts connections on addr inside the namespace and answers each
// with the peer's address as the server saw it, one line, then copies back what
// it gets. stop closes the listener; connections end with their peers.
func (n *NS) ServeTCP(addr string) (stop func() error, err error) {
	l, err := n.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: serve tcp: %w", n.Name, err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := fmt.Fprintln(c, c.RemoteAddr()); err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
	return l.Close, nil
}

// ServeUDP answers each datagram on addr inside the namespace with
// "<peer address> <datagram>", the peer as the server saw it.
func (n *NS) ServeUDP(addr string) (stop func() error, err error) {
	c, err := n.ListenPacket("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: serve udp: %w", n.Name, err)
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			k, peer, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(fmt.Appendf(nil, "%s %s", peer, buf[:k]), peer)
			}
		}
	}()
	return c.Close, nil
}
