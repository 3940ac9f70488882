// SPDX-License-Identifier: Apache-2.0

// Package health answers /healthz, /readyz and /metrics of the node agent.
//
// All users of the node reach it, and on another address than loopback its pods too. So it takes no input, its answers name no secret, and
// no number of requests makes the node do more than one look in a few seconds.
package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/sluice-cni/sluice/pkg/connlimit"
)

const (
	// fresh is how long an answer of /readyz or /metrics serves all who ask.
	fresh    = 5 * time.Second
	lookTime = 20 * time.Second
	// headTime and the others bound what clients can hold, and for how long. A connection serves one request.
	headTime = 2 * time.Second
	maxHead  = 8 << 10
	// maxSilent are clients without a complete request, maxWaiting are those who wait for a look.
	maxSilent  = 128
	maxWaiting = 64
)

// Checks are what the server asks.
type Checks struct {
	// Ready returns a line for each thing that keeps the node from networking pods.
	Ready func(ctx context.Context) []string
	// Metrics writes metrics in the text format of Prometheus.
	Metrics func(ctx context.Context, w io.Writer) error
}

// Server answers at one address.
type Server struct {
	listen  net.Listener
	ready   answer[[]string]
	metrics answer[scrape]
}

// scrape is what a look at the metrics found.
type scrape struct {
	text []byte
	err  error
}

// answer serves all who ask in a few seconds by one look.
type answer[T any] struct {
	look func(ctx context.Context) T

	mu   sync.Mutex // also: one look at a time
	last T
	at   time.Time
}

// get looks, or takes an answer that is a few seconds old. A client that goes away does not end a look that others wait for.
func (a *answer[T]) get(ctx context.Context) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || time.Since(a.at) > fresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
		a.last = a.look(ctx)
		cancel()
		a.at = time.Now()
	}
	return a.last
}

// New listens. Run serves.
func New(address string, c Checks) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("health.address: %w", err)
	}
	return &Server{listen: l, ready: answer[[]string]{look: c.Ready}, metrics: answer[scrape]{look: func(ctx context.Context) (s scrape) {
		var b bytes.Buffer
		s.err = c.Metrics(ctx, &b)
		s.text = b.Bytes()
		return s
	}}}, nil
}

// Address is where the server listens.
func (s *Server) Address() string { return s.listen.Addr().String() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", waiting(s.readyz))
	mux.HandleFunc("GET /metrics", waiting(s.scrape))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headTime, ReadTimeout: headTime, WriteTimeout: lookTime + headTime, MaxHeaderBytes: maxHead,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: connlimit.Context,
	}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(connlimit.New(s.listen, maxSilent, maxWaiting)); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// waiting keeps the place of a client while the answer takes its time.
func waiting(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		connlimit.KnownHere(r.Context())
		h(w, r)
	}
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if lines := s.ready.get(r.Context()); len(lines) > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (s *Server) scrape(w http.ResponseWriter, r *http.Request) {
	found := s.metrics.get(r.Context())
	if found.err != nil {
		http.Error(w, "no metrics", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(found.text)
}

// Status asks the plugins of a network whether they could serve an ADD. The network's own version does not matter: Sluice's plugins know
// STATUS, and kubelet asks by other means with versions before 1.1.0.
func Status(ctx context.Context, conflist []byte, binDirs []string) error {
	list, err := libcni.NetworkConfFromBytes(conflist)
	if err != nil {
		return err
	}
	list.CNIVersion = "1.1.0"
	return libcni.NewCNIConfigWithCacheDir(binDirs, "", nil).GetStatusNetworkList(ctx, list)
}
