// SPDX-License-Identifier: Apache-2.0

// Package load keeps a cluster under load and counts every failure: long connections, new connections and datagrams at a time. The servers
// are agnhost's netexec. What opens the connections is given, so that they start in any machine of the cluster.
package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Dial opens a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// A Target is a server under load.
type Target struct {
	Name    string // for the report
	Network string // "tcp" or "udp"
	Address string
	// Dial opens the connections of this target, if not that of the run.
	Dial Dial
}

// Options say how much load each target gets.
type Options struct {
	// Long is how many connections stay open. Each asks ten times a second, or once in Pause.
	Long  int
	Pause time.Duration
	// New is how many connections are opened each second, for one request each.
	New int
	// Datagrams is how many sockets ask twenty times a second.
	Datagrams int
}

// patience is how long an answer may take: a lost datagram does not come later either. A lost SYN comes again after one second. A machine
// that is busy for seconds needs more (SLUICE_TEST_PATIENCE).
var patience = netlab.Patient(5 * time.Second)

// A Count is of one kind of load at one target.
type Count struct {
	OK, Failed int
	// Opened counts connections: more than Options.Long of long ones means that some broke.
	Opened int
	// Slowest is the longest time that a request took which got its answer.
	Slowest time.Duration
	// Errors are the messages with the time of the first of each since the start.
	Errors map[string]time.Duration
}

// Run is load that goes on until Stop.
type Run struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
	start  time.Time

	mu     sync.Mutex
	counts map[string]*Count
}

// Start puts the targets under load.
func Start(dial Dial, o Options, targets ...Target) *Run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Run{cancel: cancel, start: time.Now(), counts: map[string]*Count{}}
	if o.Pause == 0 {
		o.Pause = 100 * time.Millisecond
	}
	for _, t := range targets {
		dial := dial
		if t.Dial != nil {
			dial = t.Dial
		}
		if t.Network == "udp" {
			for range o.Datagrams {
				r.each(ctx, 50*time.Millisecond, r.datagrams(dial, t))
			}
			continue
		}
		for range o.Long {
			r.each(ctx, o.Pause, r.long(dial, t))
		}
		if o.New > 0 {
			r.each(ctx, time.Second/time.Duration(o.New), r.fresh(dial, t))
		}
	}
	return r
}

// each calls ask soon and then at that interval until the load stops. ask gets a context that the stop does not cancel: a request that has begun is not a failure.
func (r *Run) each(ctx context.Context, every time.Duration, ask func(context.Context)) {
	r.all.Add(1)
	go func() {
		defer r.all.Done()
		select { // not all of them in one moment
		case <-ctx.Done():
			ask(nil)
			return
		case <-time.After(rand.N(min(every, time.Second))):
		}
		ask(context.WithoutCancel(ctx))
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				ask(nil)
				return
			case <-tick.C:
				ask(context.WithoutCancel(ctx))
			}
		}
	}()
}

// Stop ends the load and returns what was counted, by kind and target.
func (r *Run) Stop() Report {
	r.cancel()
	r.all.Wait()
	report := Report{}
	for name, c := range r.counts {
		report[name] = *c
	}
	return report
}

func (r *Run) note(kind string, t Target, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.count(kind, t)
	if err == nil {
		c.OK++
		c.Slowest = max(c.Slowest, took)
		return
	}
	c.Failed++
	var op *net.OpError
	what := err.Error()
	if errors.As(err, &op) { // without the ports, which differ each time
		what = op.Op + ": " + op.Err.Error()
	}
	if _, ok := c.Errors[what]; !ok {
		c.Errors[what] = time.Since(r.start)
	}
}

func (r *Run) opened(kind string, t Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(kind, t).Opened++
}

func (r *Run) count(kind string, t Target) *Count {
	name := kind + " " + t.Name
	if r.counts[name] == nil {
		r.counts[name] = &Count{Errors: map[string]time.Duration{}}
	}
	return r.counts[name]
}

// long asks over one connection. It opens another one only when that has failed.
func (r *Run) long(dial Dial, t Target) func(context.Context) {
	k := kept{run: r, kind: "long", dial: dial, target: t}
	return k.each(func() error {
		err := request(k.conn, k.in)
		if err != nil {
			k.close()
		}
		return err
	})
}

// fresh asks over a connection of its own, beside those that have not got their answer.
func (r *Run) fresh(dial Dial, t Target) func(context.Context) {
	return func(ctx context.Context) {
		if ctx == nil {
			return
		}
		r.all.Add(1)
		go func() {
			defer r.all.Done()
			begin := time.Now()
			conn, err := open(ctx, dial, t)
			if err == nil {
				r.opened("new", t)
				err = request(conn, bufio.NewReader(conn))
				_ = conn.Close()
			}
			r.note("new", t, time.Since(begin), err)
		}()
	}
}

// datagrams ask from one socket. An answer that comes late is another request's loss.
func (r *Run) datagrams(dial Dial, t Target) func(context.Context) {
	k := kept{run: r, kind: "datagrams", dial: dial, target: t}
	return k.each(func() error { return datagram(k.conn) })
}

// kept is a connection or a socket that several requests share.
type kept struct {
	run    *Run
	kind   string
	dial   Dial
	target Target
	conn   net.Conn // nil: not open
	in     *bufio.Reader
}

// each opens the connection if it is not, and counts what comes of a request over it.
func (k *kept) each(ask func() error) func(context.Context) {
	return func(ctx context.Context) {
		if ctx == nil {
			k.close()
			return
		}
		begin := time.Now()
		err := k.open(ctx)
		if err == nil {
			err = ask()
		}
		k.run.note(k.kind, k.target, time.Since(begin), err)
	}
}

func (k *kept) open(ctx context.Context) error {
	if k.conn != nil {
		return nil
	}
	conn, err := open(ctx, k.dial, k.target)
	if err != nil {
		return err
	}
	k.conn, k.in = conn, bufio.NewReader(conn)
	k.run.opened(k.kind, k.target)
	return nil
}

func (k *kept) close() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn = nil
	}
}

func open(ctx context.Context, dial Dial, t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return dial(ctx, t.Network, t.Address)
}

// request asks netexec for its name.
func request(conn net.Conn, in *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET /hostname HTTP/1.1\r\nHost: load\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func datagram(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hostname"); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 2048))
	return err
}

// Report has a count for each kind and target.
type Report map[string]Count

// Failed is the sum of the failures.
func (r Report) Failed() (failed int) {
	for _, c := range r {
		failed += c.Failed
	}
	return failed
}

// String has a line for each count.
func (r Report) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		c := r[name]
		fmt.Fprintf(&b, "%-34s %6d ok, %d failed, %d opened, slowest %s", name, c.OK, c.Failed, c.Opened, c.Slowest.Round(time.Millisecond))
		for _, what := range slices.Sorted(maps.Keys(c.Errors)) {
			fmt.Fprintf(&b, "\n%34s at %s: %s", "", c.Errors[what].Round(time.Millisecond), what)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
