// SPDX-License-Identifier: Apache-2.0

package netfilter

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

	"github.com/sluice-cni/sluice/pkg/filelock"
)

const (
	// xtablesWait bounds the wait for the xtables lock, in seconds: an operator
	// with an interactive iptables must not hang a runtime.
	xtablesWait = "5"
	// toolTimeout bounds one run of a tool: a node with 100,000 rules takes
	// seconds.
	toolTimeout = 30 * time.Second
	// lockTimeout bounds the wait for other plugins of ours.
	lockTimeout = 20 * time.Second
	// attempts bound how often a change is tried again because the table changed
	// between reading and writing.
	attempts = 5
)

// runner starts tools. Tests have one that remembers.
type runner interface {
	// LookPath is exec.LookPath.
	LookPath(name string) (string, error)
	// Run gives stdin to a program and returns its output; the error holds its
	// stderr.
	Run(ctx context.Context, stdin string, name string, args ...string) (string, error)
}

// toolError is a tool that ended with an error status.
type toolError struct {
	command string
	status  int
	stderr  string
}

func (e *toolError) Error() string {
	return fmt.Sprintf("%s: exit status %d: %s", e.command, e.status, e.stderr)
}

type programs struct{}

var _ runner = programs{}

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
		return "", fmt.Errorf("%w: %s: %w", ErrBusy, filepath.Base(name), ctx.Err())
	case errors.As(err, &exit):
		return "", &toolError{filepath.Base(name) + " " + strings.Join(args, " "), exit.ExitCode(), oneLine(stderr.String())}
	}
	return "", fmt.Errorf("%w: %w", ErrUnusable, err)
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), "; ")
}

// idle waits until no process of ours is at work: what is there now does not
// tell what a tool is about to write. Without the lock's file nobody ever was.
func (e env) idle(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(e.runDir, lockName)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	_, unlock, err := e.lock(ctx)
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

// lock keeps other processes of ours from changing the tables between our
// reading and writing them. Others are met by trying again. Tools that are run
// with held get the lock as an open file: one that waits for its turn when its
// plugin is killed goes on, and the DEL that follows must not pass it.
func (e env) lock(ctx context.Context) (held context.Context, unlock func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	f, err := filelock.Acquire(waiting, filepath.Join(e.runDir, lockName))
	if err != nil && waiting.Err() != nil {
		err = fmt.Errorf("%w: another plugin is at work: %w", ErrBusy, err)
	}
	if err != nil {
		return nil, nil, err
	}
	held = context.WithValue(ctx, lockKey{}, f)
	return held, func() { _ = f.Close() }, nil
}
