// SPDX-License-Identifier: Apache-2.0

// Command sluice is the operator's tool: it installs the plugins and shows
// what the datapath holds and does. It reads pinned maps and attachment
// records; only install, resync, deny, cleanup, conntrack
// relearn, nat flush and unload change anything.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a command that cannot see the first signal (its pipe is full and not read) dies of the next
	a := newApp(os.Stdout, os.Stderr)
	a.in, a.colours = os.Stdin, colours(wantColours(os.Stdout))
	a.width, _ = terminal.Size(os.Stdout)
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// newApp is a run of the tool on this node.
func newApp(out, err io.Writer) *app {
	return &app{out: out, err: err, node: realNode{}, ops: realNode{}}
}

// run executes one command line and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	a.working.Stop()
	var status exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	if !errors.Is(err, errSaid) {
		fmt.Fprintf(a.err, "sluice: %s\n", visible(err.Error()))
	}
	var failed statusError
	if errors.As(err, &failed) {
		return failed.status
	}
	return 1
}
