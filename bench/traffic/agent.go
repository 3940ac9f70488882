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

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Request is one line of JSON on an agent's standard input.
type Request struct {
	Op   string         // serve, rr, crr, stream, files, hold, release, cpu, greet, delivered
	Addr netip.AddrPort // to listen on or to send to
	For  time.Duration  // how long to measure
	// Conns is the number of parallel clients; of serve how many connections
	// there will be at once, 0 for a few; of hold how many there shall be open, and of files how many a server may hold.
	Conns   int
	From    uint16       // greet: the port to send from
	Sources []netip.Addr // hold: the addresses to connect from
}

// Reply is one line of JSON on an agent's standard output.
type Reply struct {
	Result                // rr, crr, stream
	CPU     time.Duration // user and system time of the agent: all of it for cpu, else what the request took
	Packets uint64        // delivered
	Error   string
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
		what := r.Op
		if r.Addr.IsValid() {
			what += " " + r.Addr.String()
		}
		return Reply{}, fmt.Errorf("%s: %s", what, rep.Error)
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
	if len(os.Args) > 2 && os.Args[2] == keepArg {
		return keepFiles()
	}
	// One Go processor for each thread that may block, and no garbage
	// collection, which would wait for them.
	runtime.GOMAXPROCS(processors)
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
	held    held // connections of hold, and the server's ends of them
	serving bool
}

// processors is how many Go processors an agent has for a few connections.
const processors = acceptors + 4

// processors makes it enough for so many threads that block. A server's must be there before its threads are.
func (h *handler) processors(conns int) {
	if want := conns + processors - acceptors; want > runtime.GOMAXPROCS(0) && !h.serving {
		runtime.GOMAXPROCS(want)
	}
}

func (h *handler) handle(r Request) (rep Reply, err error) {
	if r.Conns < 0 {
		return rep, fmt.Errorf("%d connections", r.Conns)
	}
	before := cpuTime()
	conns := max(1, r.Conns)
	if r.Op != "hold" && r.Op != "files" { // these run nothing at once
		if conns > maxAcceptors {
			return rep, fmt.Errorf("%d connections at once, at most %d", conns, maxAcceptors)
		}
		h.processors(conns)
	}
	switch r.Op {
	case "serve":
		if h.serving { // its threads would wait for a Go processor for ever
			return rep, errors.New("this agent serves already")
		}
		h.serving = true
		return rep, Serve(h.place, &h.held, r.Addr, r.Conns)
	case "rr":
		rep.Result, err = RR(h.place, r.Addr, conns, r.For)
	case "crr":
		rep.Result, err = CRR(h.place, r.Addr, conns, r.For)
	case "stream":
		rep.Result, err = Stream(h.place, r.Addr, conns, r.For)
	case "hold":
		err = h.held.open(r.Addr, r.Sources, r.Conns)
	case "files":
		err = h.held.allow(r.Conns)
	case "release":
		var n int
		n, err = h.held.release()
		rep.Count = uint64(n)
	case "cpu":
		rep.CPU = before
		return rep, nil
	case "greet":
		err = Greet(r.Addr, r.From)
	case "delivered":
		rep.Packets, err = delivered()
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	rep.CPU = cpuTime() - before
	return rep, err
}

// cpuTime is what the process has used, user and system. What the kernel does with packets on its threads is in it, unless the
// kernel has CONFIG_IRQ_TIME_ACCOUNTING.
func cpuTime() time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0 // it cannot fail
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
