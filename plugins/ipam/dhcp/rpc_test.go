// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

// wholeResult has a value in every field that a lease may set.
func wholeResult() *types100.Result {
	scope := 253
	return &types100.Result{
		CNIVersion: "1.0.0",
		IPs:        []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 1, 2, 3).To4(), Mask: net.CIDRMask(24, 32)}, Gateway: net.IPv4(10, 1, 2, 1).To4()}},
		Routes:     []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, GW: net.IPv4(10, 1, 2, 1).To4(), Priority: 7, Scope: &scope}},
		DNS:        types.DNS{Nameservers: []string{"10.1.2.1"}, Domain: "x.test"},
	}
}

func callArgs() *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", Netns: "/ns", IfName: "eth0", Args: "A=b", Path: "/bin", NetnsOverride: "1", StdinData: []byte("{}")}
}

// peer is a daemon as upstream has it: Go's own net/rpc over HTTP.
type peer struct {
	got   skel.CmdArgs
	reply *types100.Result
	err   error
}

func (p *peer) Allocate(args *skel.CmdArgs, reply *types100.Result) error {
	p.got = *args
	if p.err == nil {
		*reply = *p.reply
	}
	return p.err
}

func (p *peer) Release(args *skel.CmdArgs, _ *struct{}) error {
	p.got = *args
	return p.err
}

func listenTemp(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Our client and a daemon that speaks net/rpc.
func TestClientAgainstNetRPC(t *testing.T) {
	t.Parallel()
	p := &peer{reply: wholeResult()}
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, p); err != nil {
		t.Fatal(err)
	}
	l := listenTemp(t)
	go func() { _ = (&http.Server{Handler: server, ReadHeaderTimeout: time.Minute}).Serve(l) }()
	socket, ctx := l.Addr().String(), context.Background()
	got := &types100.Result{}
	if err := call(ctx, socket, methodAllocate, callArgs(), got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(wholeResult(), got); d != "" {
		t.Errorf("result (-sent +received):\n%s", d)
	}
	if d := cmp.Diff(*callArgs(), p.got); d != "" {
		t.Errorf("arguments (-sent +received):\n%s", d)
	}
	if err := call(ctx, socket, methodRelease, callArgs(), &struct{}{}); err != nil {
		t.Error(err)
	}
	p.err = errors.New("no more tries")
	if err := call(ctx, socket, methodAllocate, callArgs(), got); err == nil || err.Error() != "no more tries" {
		t.Errorf("error %v", err)
	}
	if err := call(ctx, socket, methodGC, callArgs(), &struct{}{}); !isUnknownMethod(err) {
		t.Errorf("GC at a daemon without it: %v", err)
	}
}

// serveTemp runs our server on a socket.
func serveTemp(t *testing.T, methods map[string]handler) (socket string) {
	t.Helper()
	l := listenTemp(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = serve(conn, methods) }()
		}
	}()
	return l.Addr().String()
}

// A client that speaks net/rpc, as upstream's plugin, and our daemon.
func TestNetRPCAgainstServer(t *testing.T) {
	t.Parallel()
	var got skel.CmdArgs
	hold := make(chan struct{})
	socket := serveTemp(t, map[string]handler{
		methodAllocate: func(a *skel.CmdArgs) (any, error) { got = *a; return wholeResult(), nil },
		methodRelease:  func(*skel.CmdArgs) (any, error) { <-hold; return struct{}{}, errors.New("refused") },
	})
	client, err := rpc.DialHTTP("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// A slow answer does not hold up the next one on the connection.
	slow := client.Go(methodRelease, callArgs(), &struct{}{}, nil)
	res := &types100.Result{}
	if err := client.Call(methodAllocate, callArgs(), res); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(wholeResult(), res); d != "" {
		t.Errorf("result (-sent +received):\n%s", d)
	}
	if d := cmp.Diff(*callArgs(), got); d != "" {
		t.Errorf("arguments (-sent +received):\n%s", d)
	}
	close(hold)
	if c := <-slow.Done; c.Error == nil || c.Error.Error() != "refused" {
		t.Errorf("error %v", c.Error)
	}
	if err := client.Call("DHCP.Nothing", callArgs(), &struct{}{}); err == nil || !strings.HasPrefix(err.Error(), unknownMethod) {
		t.Errorf("unknown method: %v", err)
	}
}

func TestCallFailures(t *testing.T) {
	t.Parallel()
	if err := call(context.Background(), filepath.Join(t.TempDir(), "none"), methodAllocate, callArgs(), &struct{}{}); !isUnreachable(err) {
		t.Errorf("no socket: %v", err)
	}
	l := listenTemp(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "SSH-2.0-x\n\n")
		}
	}()
	if err := call(context.Background(), l.Addr().String(), methodAllocate, callArgs(), &struct{}{}); err == nil || !strings.Contains(err.Error(), "SSH-2.0-x") {
		t.Errorf("a stranger's socket: %v", err)
	}
	never := serveTemp(t, map[string]handler{methodAllocate: func(*skel.CmdArgs) (any, error) { select {} }})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := call(ctx, never, methodAllocate, callArgs(), &struct{}{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a daemon that never answers: %v", err)
	}
}

// A preamble without an end is not kept until memory is.
func TestEndlessPreamble(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	sent := make(chan int)
	go func() {
		n := 0
		for line := make([]byte, 1024); n < 100*maxPreamble; {
			m, err := theirs.Write(line)
			if n += m; err != nil {
				break
			}
		}
		_ = theirs.Close()
		sent <- n
	}()
	err := serve(ours, nil)
	if n := <-sent; err == nil || n > 4*maxPreamble {
		t.Errorf("%d bytes were read: %v", n, err)
	}
}

// Whatever is sent, the server ends the connection and lives.
func FuzzServe(f *testing.F) {
	f.Add([]byte("CONNECT /_goRPC_ HTTP/1.0\n\n"))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add([]byte(strings.Repeat("x", 2*maxPreamble) + "\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(sent)
			_ = theirs.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		_ = serve(ours, map[string]handler{methodAllocate: func(*skel.CmdArgs) (any, error) { return struct{}{}, nil }})
	})
}
