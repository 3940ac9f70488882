// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// timer starts plugins for libcni and notes what each process cost.
type timer struct {
	invoke.Exec // lookup and version decoding stay libcni's

	mu    sync.Mutex
	calls []call
}

// call is one plugin process. Its CPU time includes the children it waited
// for.
type call struct {
	plugin, verb string
	wall         time.Duration
	user, sys    time.Duration
}

// ended notes what a process has cost that was started then.
func (c *call) ended(start time.Time, p *os.ProcessState) {
	c.wall, c.user, c.sys = time.Since(start), p.UserTime(), p.SystemTime()
}

var _ invoke.Exec = (*timer)(nil)

// ExecPlugin runs one plugin as libcni would.
func (t *timer) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	c := call{plugin: filepath.Base(path)}
	for _, e := range env {
		if verb, ok := strings.CutPrefix(e, "CNI_COMMAND="); ok {
			c.verb = verb
		}
	}
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &errOut
	start := time.Now()
	err := cmd.Run()
	if cmd.ProcessState == nil { // it was never started
		return nil, fmt.Errorf("%s %s: %w", c.plugin, c.verb, err)
	}
	c.ended(start, cmd.ProcessState)
	t.mu.Lock()
	t.calls = append(t.calls, c)
	t.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s %s", c.plugin, c.verb, err, bytes.TrimSpace(out.Bytes()), bytes.TrimSpace(errOut.Bytes()))
	}
	return out.Bytes(), nil
}

// take returns the calls noted since the last take.
func (t *timer) take() []call {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = nil
	return calls
}

func runProfile(ctx context.Context, args []string) (err error) {
	c := &common{only: []string{subject.Reference, subject.Sluice, subject.SluiceDirect}}
	f := flag.NewFlagSet("bench profile", flag.ContinueOnError)
	c.register(f, "reference,sluice")
	pods := f.Int("pods", 2, "pods with one hostPort each")
	cycles := f.Int("cycles", 20, "ADD/DEL pairs")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	c.describe(os.Stdout)
	for _, s := range c.suites {
		if err := c.profile(ctx, s, *pods, *cycles, os.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// profile times one suite.
func (c *common) profile(ctx context.Context, s subject.Suite, pods, cycles int, out io.Writer) error {
	t := &timer{Exec: netlab.NewExec(nil)}
	w, err := subject.Build(ctx, subject.Options{Suite: s, Pods: pods, Masquerade: c.masquerade, Stateful: c.stateful, Exec: t}, func(int) {})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	first := t.take()
	// The first cycle warms up.
	if _, _, err := w.AddDel(ctx); err != nil {
		return err
	}
	t.take()
	var adds, dels []time.Duration
	for range cycles {
		add, del, err := w.AddDel(ctx)
		if err != nil {
			return err
		}
		adds, dels = append(adds, add), append(dels, del)
	}
	fmt.Fprintf(out, "\n%s, one more pod on a node with %d: median of %d, ms\n", s.Name, pods, cycles)
	fmt.Fprintf(out, "  %-5s %-10s %8s %8s %8s\n", "", "", "wall", "user", "system")
	calls := t.take()
	for _, verb := range []struct {
		name  string
		total []time.Duration
	}{{"ADD", adds}, {"DEL", dels}} {
		total := middle(verb.total)
		rest := total
		for _, plugin := range []string{"bridge", "portmap", "firewall"} {
			m := summarise(calls, plugin, verb.name)
			rest -= m.wall
			fmt.Fprintf(out, "  %-5s %-10s %8.2f %8.2f %8.2f\n", verb.name, plugin, millis(m.wall), millis(m.user), millis(m.sys))
		}
		fmt.Fprintf(out, "  %-5s %-10s %8.2f\n", verb.name, "(libcni)", millis(rest))
		fmt.Fprintf(out, "  %-5s %-10s %8.2f\n", verb.name, "all", millis(total))
	}
	fmt.Fprintf(out, "  first ADD on the node:")
	for _, c := range first[:min(3, len(first))] {
		fmt.Fprintf(out, " %s %.1f", c.plugin, millis(c.wall))
	}
	_, err = fmt.Fprintln(out)
	return err
}

// summarise takes the median of each column over the calls of one plugin.
func summarise(calls []call, plugin, verb string) call {
	var wall, user, sys []time.Duration
	for _, c := range calls {
		if c.plugin == plugin && c.verb == verb {
			wall, user, sys = append(wall, c.wall), append(user, c.user), append(sys, c.sys)
		}
	}
	return call{plugin, verb, middle(wall), middle(user), middle(sys)}
}

func middle[T cmp.Ordered](d []T) (none T) {
	if len(d) == 0 {
		return none
	}
	return slices.Sorted(slices.Values(d))[len(d)/2]
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
