// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Process is a program in a namespace that runs until the test ends, or Signal ends it.
// It must not change its user or group (see netlab.NS.Start).
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	Out   *LogBuffer
	ended chan struct{}
}

// Start runs a program on the node.
func (w *World) Start(name string, args ...string) *Process {
	w.T.Helper()
	return w.Run(exec.Command(name, args...))
}

// Run is Start for a command that needs more than arguments.
func (w *World) Run(cmd *exec.Cmd) *Process {
	w.T.Helper()
	return w.RunIn(w.Node.NS, cmd)
}

// RunIn is Run in another namespace than the node's.
func (w *World) RunIn(ns *netlab.NS, cmd *exec.Cmd) *Process {
	w.T.Helper()
	p := &Process{t: w.T, cmd: cmd, Out: &LogBuffer{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.Out, p.Out
	if err := ns.Start(p.cmd); err != nil {
		w.T.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	w.T.Cleanup(func() {
		p.Signal(unix.SIGKILL)
		if w.T.Failed() {
			w.T.Logf("%s:\n%s", filepath.Base(cmd.Path), p.Out)
		}
	})
	return p
}

// PID is the process's number, outside of any PID namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal and waits for the end of the process.
func (p *Process) Signal(sig unix.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.t.Errorf("%s does not end on %v", p.cmd.Path, sig)
	}
}
