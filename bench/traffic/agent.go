// SPDX-License-Identifier: Apache-2.0

// Package traffic is the load of the benchmarks: a TCP server, and clients that
// measure request/response latency, connections per second and the throughput
// of one stream. Both run in processes of their own (agents), started inside a
// network namespace, so that every peer is measured by the same program under
// the same scheduling.
package traffic

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Request is one line of JSON on an agent's standard input.
type Request struct {
	Op   string         // serve, rr, crr, stream, greet, delivered
	Addr netip.AddrPort // to listen on or to send to
	For  time.Duration  // how long to measure
	// Conns is the number of parallel clients of crr.
	Conns int
	From  uint16 // greet: the port to send from
}

// Reply is one line of JSON on an agent's standard output.
type Reply struct {
	P50, P99 time.Duration // rr
	Rate     float64       // crr: connections per second; stream: bits per second
	Packets  uint64        // delivered
	Error    string
}

// Agent is a process in a namespace that carries out requests.
type Agent struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Arg is the first command line argument that makes the program an agent.
const Arg = "agent"

// Start runs this program again as an agent inside ns. The caller must Stop it;
// it also ends when this process does.
func Start(ns *netlab.NS) (*Agent, error) {
	a := &Agent{cmd: exec.Command("/proc/self/exe", Arg)}
	a.cmd.Stderr = os.Stderr
	// A thread that blocks in a raw system call must not be sent preemption
	// signals every 10 ms.
	a.cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	var err error
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.out = bufio.NewReader(out)
	if err := ns.Start(a.cmd); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	return a, nil
}

// Call sends a request and waits for its reply.
func (a *Agent) Call(r Request) (Reply, error) {
	if err := json.NewEncoder(a.in).Encode(r); err != nil {
		return Reply{}, fmt.Errorf("agent %s: %w", r.Op, err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		return Reply{}, fmt.Errorf("agent %s: no reply: %w", r.Op, err)
	}
	var rep Reply
	if err := json.Unmarshal(line, &rep); err != nil {
		return Reply{}, fmt.Errorf("agent %s: %w", r.Op, err)
	}
	if rep.Error != "" {
		return Reply{}, fmt.Errorf("%s %s: %s", r.Op, r.Addr, rep.Error)
	}
	return rep, nil
}

// Stop ends the agent.
func (a *Agent) Stop() error {
	err := a.in.Close()
	_ = a.cmd.Process.Kill()
	if werr := a.cmd.Wait(); werr != nil && !strings.Contains(werr.Error(), "killed") {
		err = errors.Join(err, werr)
	}
	return err
}

// Main is an agent's whole life: requests from stdin, until it closes.
func Main() error {
	// One Go processor for each thread that may block, and no garbage
	// collection, which would wait for them.
	runtime.GOMAXPROCS(acceptors + 4)
	debug.SetGCPercent(-1)
	p, err := newPlacement()
	if err != nil {
		return err
	}
	h := &handler{place: p}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r Request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		rep, err := h.handle(r)
		if err != nil {
			rep.Error = err.Error()
		}
		if err := out.Encode(rep); err != nil {
			return err
		}
		if !h.serving {
			// A client's own threads are done: give back the samples. In a server
			// the collector would wait for the blocked threads for ever.
			runtime.GC()
		}
	}
}

// handler is what an agent remembers between requests.
type handler struct {
	place   *placement
	serving bool
}

func (h *handler) handle(r Request) (rep Reply, err error) {
	switch r.Op {
	case "serve":
		if h.serving { // its threads would wait for a Go processor for ever
			return rep, errors.New("this agent serves already")
		}
		h.serving = true
		return rep, Serve(h.place, r.Addr)
	case "rr":
		rep.P50, rep.P99, err = RR(h.place, r.Addr, r.For)
	case "crr":
		rep.Rate, err = CRR(h.place, r.Addr, r.Conns, r.For)
	case "stream":
		rep.Rate, err = Stream(h.place, r.Addr, r.For)
	case "greet":
		err = Greet(r.Addr, r.From)
	case "delivered":
		rep.Packets, err = delivered()
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	return rep, err
}
