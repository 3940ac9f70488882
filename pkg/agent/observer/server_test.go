// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/cilium/api/v1/observer"
	"github.com/cilium/cilium/api/v1/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/servertest"
)

// program writes a script that stands in for sluice: it notes its arguments, and prints what follow and table print. test/e2e/agent has the real one.
func program(t *testing.T, table, follow string) (path, calls string) {
	t.Helper()
	dir := t.TempDir()
	path, calls = filepath.Join(dir, "sluice"), filepath.Join(dir, "calls")
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\ncase \"$*\" in *--follow*)\n%s\n;; *)\n%s\n;; esac\n", calls, follow, table)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, calls
}

// line is an event of a connection from port i, i seconds after 2026.
func line(i int) string {
	return fmt.Sprintf(`{"time":"2026-01-01T00:%02d:%02dZ","event":"existing","verdict":"forwarded","direction":"egress","proto":"tcp","source":"10.1.0.2:%d","destination":"192.0.2.7:443"}`,
		i/60, i%60, 1000+i)
}

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		b.WriteString("echo '" + line(i) + "'\n")
	}
	return b.String()
}

func serve(t *testing.T, o Options) *Server {
	t.Helper()
	o.Node, o.Log = "node-a", log.New(log.Options{Level: "error"})
	if o.Socket == "" && o.Address == "" {
		o.Socket = filepath.Join(t.TempDir(), "run", "hubble.sock")
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, s.Run)
	return s
}

func dial(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("unix://"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask returns the source ports of the flows, and how many were lost.
func ask(t *testing.T, c *grpc.ClientConn, r *observer.GetFlowsRequest) (ports []int, lost uint64) {
	t.Helper()
	stream, err := observer.NewObserverClient(c).GetFlows(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ports, lost
		}
		if err != nil {
			t.Fatal(err)
		}
		if f := out.GetFlow(); f != nil {
			ports = append(ports, int(f.GetL4().GetTCP().GetSourcePort()))
		}
		lost += out.GetLostEvents().GetNumEventsLost()
	}
}

// An answer from the table: the last or the first flows, those of a time, those of a filter.
func TestPast(t *testing.T) {
	t.Parallel()
	path, _ := program(t, lines(0, 30), "exit 1")
	c := dial(t, serve(t, Options{Program: path}))
	at := func(i int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC))
	}
	for name, tt := range map[string]struct {
		r    *observer.GetFlowsRequest
		want []int
	}{
		"last":   {&observer.GetFlowsRequest{Number: 3}, []int{1027, 1028, 1029}},
		"first":  {&observer.GetFlowsRequest{Number: 2, First: true}, []int{1000, 1001}},
		"since":  {&observer.GetFlowsRequest{Since: at(27)}, []int{1027, 1028, 1029}},
		"until":  {&observer.GetFlowsRequest{Since: at(5), Until: at(6)}, []int{1005, 1006}},
		"filter": {&observer.GetFlowsRequest{Number: 9, Whitelist: []*flow.FlowFilter{{SourcePort: []string{"1004"}}, {SourcePort: []string{"1007"}}}}, []int{1004, 1007}},
	} {
		if got, lost := ask(t, c, tt.r); fmt.Sprint(got) != fmt.Sprint(tt.want) || lost != 0 {
			t.Errorf("%s: %v, %d lost, want %v", name, got, lost, tt.want)
		}
	}
	if got, _ := ask(t, c, &observer.GetFlowsRequest{}); len(got) != 30 {
		t.Errorf("all: %d", len(got))
	}
}

// What an answer has no room for is told as lost, and memory stays bounded.
func TestLargeTable(t *testing.T) {
	t.Parallel()
	path, _ := program(t, fmt.Sprintf("yes '%s' | head -n 20000", line(1)), "exit 1")
	c := dial(t, serve(t, Options{Program: path}))
	if got, lost := ask(t, c, &observer.GetFlowsRequest{Number: 1 << 63}); len(got) != maxAnswer || lost != 20000-maxAnswer {
		t.Errorf("%d flows, %d lost", len(got), lost)
	}
	if got, lost := ask(t, c, &observer.GetFlowsRequest{Number: 10}); len(got) != 10 || lost != 0 {
		t.Errorf("%d flows, %d lost", len(got), lost)
	}
}

// One process serves all clients, and ends after the last one. A server at rest has none.
func TestOneProcess(t *testing.T) {
	t.Parallel()
	path, calls := program(t, "", lines(0, 3)+"exec sleep 60")
	s := serve(t, Options{Program: path, Rate: 77, Sample: 5})
	count := func() int {
		text, _ := os.ReadFile(calls)
		return strings.Count(string(text), "\n")
	}
	if count() != 0 {
		t.Error("a process without a client")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var streams []grpc.ServerStreamingClient[observer.GetFlowsResponse]
	for range 3 {
		stream, err := observer.NewObserverClient(dial(t, s)).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, stream)
	}
	if out, err := streams[0].Recv(); err != nil || out.GetFlow().GetNodeName() != "node-a" {
		t.Errorf("%v, %v", out, err)
	}
	eventually(t, func() bool { kept, _, _ := s.hub.count(); return kept == 3 })
	if text, _ := os.ReadFile(calls); string(text) != "observe -o json --follow --sample 5 --max-rate 77\n" {
		t.Errorf("calls: %q", text)
	}
	st, err := observer.NewObserverClient(dial(t, s)).ServerStatus(t.Context(), &observer.ServerStatusRequest{})
	if err != nil || st.GetNumFlows() != 3 || st.GetSeenFlows() != 3 || st.GetMaxFlows() != recent {
		t.Errorf("%v, %v", st, err)
	}
	cancel()
	eventually(t, func() bool { s.hub.mu.Lock(); defer s.hub.mu.Unlock(); return s.hub.end == nil && len(s.hub.ring) == 0 })
}

// A client that does not read loses events, which are counted, and holds no other client up.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil, nil)
	slow := &client{events: make(chan flowevent.Event, queue)}
	h.clients[slow] = true
	for i := range queue + 1000 {
		h.publish(t.Context(), flowevent.Event{Event: flowevent.New, Source: netip.AddrPortFrom(netip.MustParseAddr("10.1.0.2"), uint16(i))})
	}
	if n := slow.lost.Load(); n != 1000 || len(slow.events) != queue {
		t.Errorf("%d lost, %d wait", n, len(slow.events))
	}
	s := &Server{hub: h}
	ctx, cancel := context.WithCancel(t.Context())
	var first *observer.GetFlowsResponse
	r, _ := newRequest(&observer.GetFlowsRequest{Follow: true})
	_ = s.live(ctx, &r, slow, func(out *observer.GetFlowsResponse) error {
		if first == nil {
			first = out
		}
		cancel()
		return nil
	})
	if first.GetLostEvents().GetNumEventsLost() != 1000 {
		t.Errorf("first: %v", first)
	}
	for range 3 * recent {
		h.publish(t.Context(), flowevent.Event{Event: flowevent.New})
	}
	if n := len(h.kept(slow)); n != recent || len(slow.events) != 0 {
		t.Errorf("%d kept, %d wait", n, len(slow.events))
	}
}

// The calls that stay are bounded.
func TestManyClients(t *testing.T) {
	t.Parallel()
	path, _ := program(t, "", lines(0, 1)+"exec sleep 60")
	s := serve(t, Options{Program: path, Peers: func() []Peer { return []Peer{{"node-a", "192.0.2.1:4244"}} }})
	for i := range maxFollow {
		stream, err := peer.NewPeerClient(dial(t, s)).Notify(t.Context(), &peer.NotifyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := stream.Recv(); err != nil || n.GetName() != "node-a" || n.GetAddress() != "192.0.2.1:4244" || n.GetType() != peer.ChangeNotificationType_PEER_ADDED || n.GetTls() != nil {
			t.Fatalf("%d: %v, %v", i, n, err)
		}
	}
	stream, err := observer.NewObserverClient(dial(t, s)).GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}

// Relay has one connection for all of its clients. As many as may follow do, one more is refused, and none waits.
func TestManyClientsOfRelay(t *testing.T) {
	t.Parallel()
	path, _ := program(t, lines(0, 1), "exec sleep 60")
	c := observer.NewObserverClient(dial(t, serve(t, Options{Program: path})))
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(20*time.Second))
	defer cancel()
	for i := range maxFollow + 1 {
		stream, err := c.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
		if err == nil {
			_, err = stream.Recv()
		}
		if i < maxFollow && err != nil || i == maxFollow && status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if _, err := c.ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil {
		t.Error(err)
	}
}

// What the process says when it fails is the client's error.
func TestProcessFails(t *testing.T) {
	t.Parallel()
	path, _ := program(t, "echo 'sluice: not loaded' >&2; exit 1", "exit 1")
	c := dial(t, serve(t, Options{Program: path}))
	stream, err := observer.NewObserverClient(c).GetFlows(t.Context(), &observer.GetFlowsRequest{Number: 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "sluice: not loaded") {
		t.Error(err)
	}
	for _, service := range []string{"hubble.server.Observer", "observer.Observer", "peer.Peer", ""} {
		if r, err := grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, r, err)
		}
	}
}

// The socket is its owner's whatever the umask, and is in no directory that another user can write to.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "hubble.sock")
	for range 2 { // the second finds that of the first, as after a kill
		l, err := listenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		_ = l
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Socket: path}); err == nil || !strings.Contains(err.Error(), "observe.socket: "+dir) {
		t.Errorf("a directory of others: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
}

func TestPeerChanges(t *testing.T) {
	t.Parallel()
	told := map[string]string{}
	say := func(now ...Peer) (out string) {
		for _, n := range changes(told, now, true) {
			out += fmt.Sprintf("%s %s %s %s; ", n.GetType(), n.GetName(), n.GetAddress(), n.GetTls().GetServerName())
		}
		return out
	}
	if got := say(Peer{"a.b", "192.0.2.1:1"}); got != "PEER_ADDED a.b 192.0.2.1:1 a-b.default.hubble-grpc.cilium.io; " {
		t.Error(got)
	}
	if got := say(Peer{"a.b", "192.0.2.1:1"}); got != "" {
		t.Error(got)
	}
	if got := say(Peer{"a.b", "192.0.2.2:1"}, Peer{"c", "192.0.2.3:1"}); !strings.HasPrefix(got, "PEER_UPDATED a.b 192.0.2.2:1") || !strings.Contains(got, "PEER_ADDED c ") {
		t.Error(got)
	}
	if got := say(Peer{"c", "192.0.2.3:1"}); !strings.HasPrefix(got, "PEER_DELETED a.b ") {
		t.Error(got)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for range 200 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("not in time")
}
