// SPDX-License-Identifier: Apache-2.0

// Package observer serves Hubble's API on the node: observer.Observer and peer.Peer, for the tools that people have.
//
// It reads what `sluice observe` prints, which it runs only while a client asks: one process for all clients that follow, and one for an
// answer from the table. What a client can make it hold is bounded. It changes nothing, and serves no byte of a packet's payload.
package observer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/cilium/api/v1/observer"
	"github.com/cilium/cilium/api/v1/peer"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-cni/sluice/pkg/connlimit"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/hubbleflow"
	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	maxConns    = 32            // connections of clients with a certificate, and at the socket
	maxGreeted  = 128           // connections in the TLS handshake, of clients that may be anyone
	maxFollow   = 16            // calls that stay: GetFlows with follow, and Notify
	maxCalls    = maxFollow + 8 // calls of a connection at a time, and others wait: relay has one connection for all of its clients
	maxRequest  = 64 << 10      // bytes
	maxHeader   = 8 << 10
	writeBuffer = 8 << 10 // of a connection
	silentTime  = 2 * time.Minute
	greetTime   = 2 * time.Second // for the TLS handshake of a client that may be anyone
)

// healthName is the service that Hubble's clients ask the health of.
const healthName = "hubble.server.Observer"

// Options are what the server needs.
type Options struct {
	Node    string // its name
	Version string
	Socket  string // path of the Unix socket; empty: none
	Address string // IP address and port, with mutual TLS; empty: none
	TLS     Files
	Program string // sluice
	Rate    int    // most events a second of the process that follows
	Sample  uint64 // one of so many connections
	// Use keeps names up to date until release is called, and waits a moment for them; nil: there are none.
	Use   func(ctx context.Context) (release func())
	Names hubbleflow.Names
	// Peers are the nodes with this server, this one among them.
	Peers func() []Peer
	Log   *log.Logger
}

// Peer is a node with this server.
type Peer struct {
	Name, Address string
}

// Server answers at a socket, at an address, or at both.
type Server struct {
	Options
	started time.Time
	hub     *hub
	reading chan struct{} // one process reads the table at a time
	staying chan struct{} // places of calls that stay
	listen  []net.Listener
	servers []*grpc.Server

	observer.UnimplementedObserverServer
	peer.UnimplementedPeerServer
}

// New listens. Run serves. An error names the key of the agent's configuration.
func New(o Options) (*Server, error) {
	s := &Server{Options: o, started: time.Now(), reading: make(chan struct{}, 1), staying: make(chan struct{}, maxFollow)}
	s.hub = newHub(s.followCommand, s.use, o.Log)
	if o.Socket != "" {
		l, err := listenUnix(o.Socket)
		if err != nil {
			return nil, fmt.Errorf("observe.socket: %w", err)
		}
		s.add(netutil.LimitListener(l, maxConns)) // root alone comes there
	}
	if o.Address != "" {
		config, err := o.TLS.server(o.Log)
		if err != nil {
			s.close()
			return nil, err
		}
		l, err := net.Listen("tcp", o.Address)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("observe.address: %w", err)
		}
		s.add(connlimit.New(l, maxGreeted, maxConns), grpc.Creds(greeted{credentials.NewTLS(config)}))
	}
	return s, nil
}

func (s *Server) add(l net.Listener, more ...grpc.ServerOption) {
	server := grpc.NewServer(append(more,
		grpc.MaxConcurrentStreams(maxCalls), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeader), grpc.ConnectionTimeout(greetTime),
		grpc.WriteBufferSize(writeBuffer), grpc.ReadBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silentTime, Timeout: silentTime / 4}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)...)
	observer.RegisterObserverServer(server, s)
	peer.RegisterPeerServer(server, s)
	alive := health.NewServer()
	for _, name := range []string{healthName, observer.Observer_ServiceDesc.ServiceName, peer.Peer_ServiceDesc.ServiceName} {
		alive.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(server, alive)
	s.listen, s.servers = append(s.listen, l), append(s.servers, server)
}

// greeted keeps the place of a client whose certificate is good.
type greeted struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g greeted) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	safe, info, err := g.TransportCredentials.ServerHandshake(c)
	if err == nil {
		connlimit.Known(c)
	}
	return safe, info, err
}

func (s *Server) close() {
	for _, l := range s.listen {
		_ = l.Close()
	}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.servers))
	for i, server := range s.servers {
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		all.Go(func() {
			if err := server.Serve(s.listen[i]); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
				errs[i] = err
			}
		})
	}
	all.Wait()
	s.hub.stop()
	return errors.Join(errs...)
}

func (s *Server) use(ctx context.Context) (release func()) {
	if s.Use == nil {
		return func() {}
	}
	return s.Use(ctx)
}

// stay takes a place of a call that stays.
func (s *Server) stay() (leave func(), ok bool) {
	select {
	case s.staying <- struct{}{}:
		return func() { <-s.staying }, true
	default:
		return nil, false
	}
}

// listenUnix makes a socket that only root can use, whatever the umask, in a directory that no other user can write to.
func listenUnix(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := file.CheckOwner(dir); err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s: is no socket; remove it, or name another path", path)
	case err == nil: // of an agent before this one
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	// The mode is that of the socket before it has a path: no other user can connect in between.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	return c.Listen(context.Background(), "unix", path)
}
