// SPDX-License-Identifier: Apache-2.0

// Package tool runs the load generators that people know, iperf3, wrk and sockperf, between two network namespaces, and reads what
// they print. The programs come from the distribution.
package tool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Names of the programs.
const (
	Iperf3   = "iperf3"
	Wrk      = "wrk"
	Sockperf = "sockperf"
)

// Names are all programs.
func Names() []string { return []string{Iperf3, Wrk, Sockperf} }

// Result is what a tool measured.
type Result struct {
	// Rate is requests or connections a second, or bits a second.
	Rate float64
	// The percentiles of the time of a request, 0 of a stream.
	P50, P99, P999 time.Duration
	// Count is requests or bytes, and CPU what the tool's processes used for them. The server of wrk is not the tool's.
	Count float64
	CPU   time.Duration
}

// Ends are where a tool's client and server run.
type Ends struct {
	Client, Server *netlab.NS
	// Listen is the server's port, Target what the client is told.
	Listen uint16
	Target netip.AddrPort
}

// Version is what a program says of itself, in one line. An error names the program that is missing.
func Version(ctx context.Context, name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: not installed; make bench-report installs it: %w", name, err)
	}
	flag := "--version"
	if name == Wrk {
		flag = "-v"
	}
	out, err := exec.CommandContext(ctx, path, flag).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // wrk says its version and exits with 1
		return "", fmt.Errorf("%s %s: %w", name, flag, err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, strings.TrimSuffix(name, "3")) { // iperf3 calls itself "iperf 3.12"
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%s %s: no version in %q", name, flag, out)
}

// grace is how much longer than asked for a tool may take.
const grace = 20 * time.Second

// run runs a client and reads its output. An error has the whole command.
func run(ctx context.Context, ns *netlab.NS, d time.Duration, line []string, parse func([]byte) (Result, error)) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, netlab.Patient(d+grace))
	defer cancel()
	cmd, output := command(ctx, line)
	if err := ns.Start(cmd); err != nil {
		return r, err
	}
	if err := cmd.Wait(); err != nil {
		return r, fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, bytes.TrimSpace(output.Bytes()))
	}
	if r, err = parse(output.Bytes()); err != nil {
		return r, fmt.Errorf("%s: %w", strings.Join(line, " "), err)
	}
	r.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r, nil
}

func command(ctx context.Context, line []string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	return cmd, &out
}

// withServer runs f while a server listens, ends the server, and returns what that used.
func withServer(ctx context.Context, e Ends, line []string, f func() error) (cpu time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd, out := command(ctx, line)
	if err := e.Server.Start(cmd); err != nil {
		return 0, err
	}
	ready := await(ctx, cmd.Process.Pid, e.Listen)
	if ready == nil {
		err = f()
	}
	cancel()
	_ = cmd.Wait() // killed
	if ready != nil {
		return 0, fmt.Errorf("%s: %w: %s", strings.Join(line, " "), ready, bytes.TrimSpace(out.Bytes()))
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// await waits until something listens on the port in the process's network namespace. It connects to nothing: a server for one
// client would be used up.
func await(ctx context.Context, pid int, port uint16) error {
	for late := time.Now().Add(netlab.Patient(5 * time.Second)); time.Now().Before(late); time.Sleep(2 * time.Millisecond) {
		for _, table := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
			if err != nil {
				continue // no IPv6, or it has ended
			}
			if listens(text, port) {
				return nil
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return fmt.Errorf("it does not listen on port %d", port)
}

// listens reads a table of proc(5).
func listens(table []byte, port uint16) bool {
	want := fmt.Sprintf(":%04X", port)
	for s := bufio.NewScanner(bytes.NewReader(table)); s.Scan(); {
		const local, state, listen = 1, 3, "0A"
		if f := strings.Fields(s.Text()); len(f) > state && strings.HasSuffix(f[local], want) && f[state] == listen {
			return true
		}
	}
	return false
}

// seconds is a time as these programs take it: whole seconds.
func seconds(d time.Duration) string { return fmt.Sprint(max(1, int(d.Round(time.Second).Seconds()))) }
