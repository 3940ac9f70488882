// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	// recent is how many events of the process that follows are kept, as long as it runs.
	recent = 2048
	// queue is how many events wait for a client. What it does not take in time is lost to it, and counted.
	queue = 512
	// maxLine is far more than a line has.
	maxLine = 64 << 10
	// maxErrors is how much of what a process says on stderr is kept.
	maxErrors = 1 << 10
	// again is how long a process that ended is left alone.
	again = 5 * time.Second
	// stopTime is how long a process has to end.
	stopTime = 3 * time.Second
)

// hub runs one process for all clients that follow, as long as there is one.
type hub struct {
	command func(ctx context.Context) *exec.Cmd
	use     func(ctx context.Context) (release func())
	log     *log.Logger

	mu      sync.Mutex
	clients map[*client]bool
	ring    []flowevent.Event // the oldest at next, once it is full
	next    int
	seen    uint64
	end     func() // stops the process and waits for it; nil: there is none
}

// client is one call that follows.
type client struct {
	events chan flowevent.Event
	lost   atomic.Uint64
}

func newHub(command func(context.Context) *exec.Cmd, use func(context.Context) func(), l *log.Logger) *hub {
	return &hub{command: command, use: use, log: l, clients: map[*client]bool{}}
}

// join starts the process for the first client.
func (h *hub) join() *client {
	c := &client{events: make(chan flowevent.Event, queue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients[c] = true
	if h.end == nil {
		ctx, cancel := context.WithCancel(context.Background())
		var tasks sync.WaitGroup
		tasks.Go(func() { h.run(ctx) })
		h.end = func() { cancel(); tasks.Wait() }
	}
	return c
}

// leave ends the process after the last client.
func (h *hub) leave(c *client) {
	h.mu.Lock()
	delete(h.clients, c)
	var end func()
	if len(h.clients) == 0 {
		end, h.end = h.end, nil
		h.ring, h.next = nil, 0
	}
	h.mu.Unlock()
	if end != nil {
		end()
	}
}

func (h *hub) stop() {
	h.mu.Lock()
	end := h.end
	h.end = nil
	h.mu.Unlock()
	if end != nil {
		end()
	}
}

// run keeps the process running until ctx ends.
func (h *hub) run(ctx context.Context) {
	defer h.use(ctx)()
	said := ""
	for ctx.Err() == nil {
		err := readLines(ctx, h.command(ctx), func(e flowevent.Event) bool { h.publish(ctx, e); return true })
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			h.log.Warn("observe", log.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// publish hands an event to each client. A process of former clients, which ends at that time, tells no client.
func (h *hub) publish(ctx context.Context, e flowevent.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if e.Event != flowevent.Lost {
		h.seen++
		if len(h.ring) < recent {
			h.ring = append(h.ring, e)
		} else {
			h.ring[h.next] = e
			h.next = (h.next + 1) % recent
		}
	}
	for c := range h.clients {
		select {
		case c.events <- e:
		default:
			c.lost.Add(1)
		}
	}
}

// kept returns the recent events, in the order of their arrival. What waits for the client, if there is one, is among them, and waits no longer.
func (h *hub) kept(c *client) []flowevent.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c != nil && len(c.events) > 0 {
		<-c.events
	}
	return append(append([]flowevent.Event{}, h.ring[h.next:]...), h.ring[:h.next]...)
}

// count returns how many events are kept and have been seen, and how many a second came in the last minute.
func (h *hub) count() (kept, seen uint64, rate float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for i := range h.ring {
		if time.Since(h.ring[i].Time) < time.Minute {
			n++
		}
	}
	return uint64(len(h.ring)), h.seen, float64(n) / time.Minute.Seconds()
}

// followCommand is the process that follows.
func (s *Server) followCommand(ctx context.Context) *exec.Cmd {
	return exec.CommandContext(ctx, s.Program, "observe", "-o", "json", "--follow",
		"--sample", strconv.FormatUint(max(1, s.Sample), 10), "--max-rate", strconv.Itoa(s.Rate))
}

// readLines runs a process and calls f for each event that it prints, until f returns false.
func readLines(ctx context.Context, cmd *exec.Cmd, f func(flowevent.Event) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = stopTime
	// It ends with this process, however that ends. To the kernel, the parent is a thread: this one stays as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	errs := &tail{}
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	defer stop()
	err = decode(out, f)
	cancel()
	_, _ = io.Copy(io.Discard, out) // so that it can end
	werr := cmd.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("%s observe: %w", cmd.Path, err)
	case werr != nil:
		return fmt.Errorf("%s observe: %w: %s", cmd.Path, werr, bytes.TrimSpace(errs.text))
	}
	return nil
}

func decode(r io.Reader, f func(flowevent.Event) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), maxLine)
	for lines.Scan() {
		var e flowevent.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("a line that is no event: %w", err)
		}
		if !f(e) {
			return nil
		}
	}
	return lines.Err()
}

// tail keeps the beginning of what a process says.
type tail struct{ text []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b[:min(len(b), maxErrors-len(t.text))]...)
	return len(b), nil
}
