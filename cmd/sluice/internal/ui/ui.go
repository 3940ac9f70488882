// SPDX-License-Identifier: Apache-2.0

// Package ui serves the page of "sluice ui" on a loopback address: embedded files, and what a look at the node found, as JSON.
//
// It changes nothing, on the node or elsewhere. Every process of the node reaches the address, so without the token of the printed URL
// there is no answer. One look serves all browsers for an interval, and nothing looks while none asks.
package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/connlimit"
)

const (
	// lookTime bounds one look at the node, doctorFresh says for how long an answer of the doctor serves all.
	lookTime    = 30 * time.Second
	doctorFresh = 30 * time.Second
	// What clients can hold, and for how long.
	headTime = 3 * time.Second
	idleTime = 30 * time.Second
	maxHead  = 8 << 10
	maxQuery = 1 << 10
	// maxStrangers are connections without the token, maxBrowsers are those with it.
	maxStrangers = 128
	maxBrowsers  = 32
)

// Look is what was found on the node at one time. It does not change any more.
type Look interface {
	// Node is what /api/node answers, as a value for encoding/json.
	Node() any
	// Connections is what /api/connections answers. An error says what is wrong with the query.
	Connections(query url.Values) (any, error)
}

// Source looks at the node.
type Source interface {
	Look(ctx context.Context) (Look, error)
	// Doctor is what /api/doctor answers. It takes longer than a look.
	Doctor(ctx context.Context) (any, error)
}

// Server answers at one loopback address.
type Server struct {
	listen net.Listener
	gate   gate
	every  time.Duration
	look   answer[found]
	doctor answer[found]
}

// found is a look with its answer to /api/node.
type found struct {
	look Look
	json []byte
	err  error
}

// answer serves all who ask within an interval by one look.
type answer[T any] struct {
	fresh time.Duration
	ask   func(ctx context.Context) T

	mu   sync.Mutex // also: one look at a time
	last T
	at   time.Time
}

// get looks, or takes the last answer. A client that goes away does not end a look that others wait for.
func (a *answer[T]) get(ctx context.Context) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || time.Since(a.at) >= a.fresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
		a.last = a.ask(ctx)
		cancel()
		a.at = time.Now()
	}
	return a.last
}

// New listens on address, which must be a loopback address with a port; port 0 takes a free one. Run serves.
func New(address string, every time.Duration, source Source) (*Server, error) {
	if err := loopback(address); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &Server{
		listen: l, gate: newGate(), every: every,
		look: answer[found]{fresh: every, ask: func(ctx context.Context) (f found) {
			if f.look, f.err = source.Look(ctx); f.err == nil {
				f.json, f.err = json.Marshal(f.look.Node())
			}
			return f
		}},
		doctor: answer[found]{fresh: doctorFresh, ask: func(ctx context.Context) (f found) {
			var v any
			if v, f.err = source.Doctor(ctx); f.err == nil {
				f.json, f.err = json.Marshal(v)
			}
			return f
		}},
	}, nil
}

// loopback refuses what others than processes of this node could reach, and names, which a resolver could send elsewhere.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q: must be an address and a port", address)
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return fmt.Errorf("%q: must be an IP address and a port, such as 127.0.0.1:9880", address)
	}
	if !ip.IsLoopback() {
		return fmt.Errorf("%q: is no loopback address; from elsewhere use a tunnel: ssh -L 9880:127.0.0.1:9880 root@NODE", address)
	}
	return nil
}

// URL is what the operator opens. It has the token.
func (s *Server) URL() string {
	return (&url.URL{Scheme: "http", Host: s.listen.Addr().String(), Path: "/", RawQuery: url.Values{tokenKey: {s.gate.token}}.Encode()}).String()
}

// Check looks at the node once, so that a command that cannot see anything ends with the reason.
func (s *Server) Check(ctx context.Context) error { return s.look.get(ctx).err }

// Close ends a server that is not run.
func (s *Server) Close() error { return s.listen.Close() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headTime, ReadTimeout: headTime, WriteTimeout: lookTime + headTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHead, BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: connlimit.Context,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(connlimit.New(s.listen, maxStrangers, maxBrowsers)); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
