// SPDX-License-Identifier: Apache-2.0

// Package tool is what the packages of netfilter's tools share: starting a
// program, the lock that keeps other plugins of Sluice from the tables, and a
// look at the kernel's tables. It knows no rule of any tool.
package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

const (
	// toolTimeout bounds one run of a tool: a node with 100,000 rules takes
	// seconds.
	toolTimeout = 30 * time.Second
	// lockTimeout bounds the wait for other plugins of Sluice.
	lockTimeout = 20 * time.Second
	// Attempts bound how often a change is tried again because the table changed
	// between reading and writing.
	Attempts = 5
)

// DefaultRunDir is where the lock and the decision are.
const DefaultRunDir = "/run/sluice"

// Env is what a tool works with.
type Env struct {
	Runner
	Kernel
	RunDir string // of the lock and the decision
	Log    *log.Logger
	Mark   uint32 // or-ed into the mark of packets that nftables admits; 0: none
}

// NewEnv returns the node's. An empty runDir is DefaultRunDir, a nil logger logs
// nothing.
func NewEnv(runDir string, mark uint32, l *log.Logger) Env {
	if runDir == "" {
		runDir = DefaultRunDir
	}
	if l == nil {
		l = log.NewNop()
	}
	return Env{Runner: programs{}, Kernel: system{}, RunDir: runDir, Log: l, Mark: mark}
}

// Runner starts tools. Tests have one that remembers.
type Runner interface {
	// LookPath is exec.LookPath.
	LookPath(name string) (string, error)
	// Run gives stdin to a program and returns its output; the error holds its
	// stderr.
	Run(ctx context.Context, stdin string, name string, args ...string) (string, error)
}

// Error is a tool that ended with an error status.
type Error struct {
	Command string
	Status  int
	Stderr  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: exit status %d: %s", e.Command, e.Status, e.Stderr)
}

type programs struct{}

var _ Runner = programs{}

func (programs) LookPath(name string) (string, error) { return exec.LookPath(name) }

func (programs) Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if f, ok := ctx.Value(lockKey{}).(*os.File); ok {
		cmd.ExtraFiles = []*os.File{f}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return stdout.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: %s: %w", netfilter.ErrBusy, filepath.Base(name), ctx.Err())
	case errors.As(err, &exit):
		return "", &Error{filepath.Base(name) + " " + strings.Join(args, " "), exit.ExitCode(), oneLine(stderr.String())}
	}
	return "", fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), "; ")
}

// Idle waits until no process of Sluice is at work: what is there now does not
// tell what a tool is about to write. Without the lock's file none ever was.
func (e Env) Idle(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(e.RunDir, lockName)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	_, unlock, err := e.Lock(ctx)
	if err != nil {
		return err
	}
	unlock()
	return nil
}

// lockName is the file in the run directory.
const lockName = "netfilter.lock"

// lockKey is where a context has the file of the lock.
type lockKey struct{}

// Lock keeps other processes of Sluice from changing the tables between reading
// and writing them. Third parties do not know the lock: callers try again. Tools
// that are run with held get the lock as an open file. A tool that waits for its
// turn when its plugin is killed goes on, and the DEL that follows must wait.
func (e Env) Lock(ctx context.Context) (held context.Context, unlock func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	f, err := file.AcquireLock(waiting, filepath.Join(e.RunDir, lockName))
	if err != nil && waiting.Err() != nil {
		err = fmt.Errorf("%w: another plugin is at work: %w", netfilter.ErrBusy, err)
	}
	if err != nil {
		return nil, nil, err
	}
	held = context.WithValue(ctx, lockKey{}, f)
	return held, func() { _ = f.Close() }, nil
}
