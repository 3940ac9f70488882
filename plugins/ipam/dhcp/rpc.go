// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/skel"
)

// The protocol is that of Go's net/rpc with gob, begun by an HTTP CONNECT. It is
// spoken here without that package, which brings an HTTP server and a template
// engine along: 5 MB in a binary that is started for every pod.

// The methods of the daemon. The first two are upstream's.
const (
	serviceName    = "DHCP"
	methodAllocate = serviceName + ".Allocate"
	methodRelease  = serviceName + ".Release"
	methodGC       = serviceName + ".GC"
)

const (
	// rpcPath is net/rpc's default path.
	rpcPath = "/_goRPC_"
	// connected is how a server of net/rpc agrees.
	connected = "200 Connected to Go RPC"
	// maxPreamble bounds what is read before the protocol begins, bytes.
	maxPreamble = 4096
	// unknownMethod begins the error of a server that does not know a method.
	unknownMethod = "rpc: can't find "
)

// rpcRequest and rpcResponse go before the bodies; gob goes by the fields' names.
type rpcRequest struct {
	ServiceMethod string
	Seq           uint64
}

type rpcResponse struct {
	ServiceMethod string
	Seq           uint64
	Error         string
}

// errUnreachable is a daemon that is not there.
var errUnreachable = errors.New("not reachable")

func isUnreachable(err error) bool { return errors.Is(err, errUnreachable) }

// serverError is what the daemon said.
type serverError string

func (e serverError) Error() string { return string(e) }

func isUnknownMethod(err error) bool {
	var said serverError
	return errors.As(err, &said) && strings.HasPrefix(string(said), unknownMethod)
}

func connect(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return conn, nil
}

// call asks the daemon for one thing, and gives up when ctx ends.
func call(ctx context.Context, socket, method string, args *skel.CmdArgs, reply any) error {
	return talk(ctx, socket, func(conn net.Conn) error { return exchangeCall(conn, method, args, reply) })
}

// ping fails unless a daemon is on the socket and answers.
func ping(ctx context.Context, socket string) error {
	return talk(ctx, socket, func(conn net.Conn) error {
		_, err := begin(conn)
		return err
	})
}

func talk(ctx context.Context, socket string, f func(net.Conn) error) error {
	conn, err := connect(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = f(conn)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// begin leads to where the protocol proper begins.
func begin(conn net.Conn) (*bufio.Reader, error) {
	if _, err := io.WriteString(conn, "CONNECT "+rpcPath+" HTTP/1.0\n\n"); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	status, err := readPreamble(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if !strings.HasSuffix(status, connected) {
		return nil, fmt.Errorf("no DHCP daemon is on the socket: it says %q", status)
	}
	return r, nil
}

func exchangeCall(conn net.Conn, method string, args *skel.CmdArgs, reply any) error {
	r, err := begin(conn)
	if err != nil {
		return err
	}
	enc, dec := gob.NewEncoder(conn), gob.NewDecoder(r)
	if err := errors.Join(enc.Encode(&rpcRequest{ServiceMethod: method}), enc.Encode(args)); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	var resp rpcResponse
	if err := dec.Decode(&resp); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.Error != "" {
		return serverError(resp.Error)
	}
	return dec.Decode(reply)
}

// readPreamble reads an HTTP/1.0 head and returns its first line.
func readPreamble(r *bufio.Reader) (first string, err error) {
	for size := 0; ; {
		// Of a line that does not end, no more is read than fits into the buffer.
		b, err := r.ReadSlice('\n')
		if size += len(b); size > maxPreamble || errors.Is(err, bufio.ErrBufferFull) {
			return "", errors.New("the preamble is too long")
		}
		if err != nil {
			return "", err
		}
		line := strings.TrimRight(string(b), "\r\n")
		switch {
		case line == "":
			return first, nil
		case first == "":
			first = line
		}
	}
}

// handler answers one method; reply is what the client decodes.
type handler func(args *skel.CmdArgs) (reply any, err error)

// serve answers the calls of one connection, each in a goroutine of its own,
// until the client closes it.
func serve(conn net.Conn, methods map[string]handler) error {
	defer conn.Close()
	r := bufio.NewReader(conn)
	line, err := readPreamble(r)
	if errors.Is(err, io.EOF) {
		return nil // a process looked whether the daemon is there
	}
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "CONNECT ") {
		_, err := io.WriteString(conn, "HTTP/1.0 405 must CONNECT\n\n")
		return err
	}
	if _, err := io.WriteString(conn, "HTTP/1.0 "+connected+"\n\n"); err != nil {
		return err
	}
	dec := gob.NewDecoder(r)
	var (
		answering sync.WaitGroup
		mu        sync.Mutex // one answer at a time
		enc       = gob.NewEncoder(conn)
	)
	defer answering.Wait()
	for {
		var req rpcRequest
		if err := dec.Decode(&req); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		args := &skel.CmdArgs{}
		if err := dec.Decode(args); err != nil {
			return err
		}
		answering.Go(func() {
			resp, body := answer(&req, args, methods)
			mu.Lock()
			defer mu.Unlock()
			if err := errors.Join(enc.Encode(resp), enc.Encode(body)); err != nil {
				_ = conn.Close() // the client has gone, or half an answer is out
			}
		})
	}
}

func answer(req *rpcRequest, args *skel.CmdArgs, methods map[string]handler) (*rpcResponse, any) {
	resp := &rpcResponse{ServiceMethod: req.ServiceMethod, Seq: req.Seq}
	h := methods[req.ServiceMethod]
	if h == nil {
		resp.Error = unknownMethod + "method " + req.ServiceMethod
		return resp, struct{}{}
	}
	reply, err := h(args)
	if err != nil {
		resp.Error = err.Error()
		return resp, struct{}{}
	}
	return resp, reply
}
