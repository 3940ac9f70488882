// SPDX-License-Identifier: Apache-2.0

// Command demo shows Sluice at work: it makes a node, a client and two pods in
// namespaces of their own, runs the CNI specification's example network through
// libcni, talks HTTP through a hostPort and out of a pod in both families, then
// removes everything and compares the node with what it was. It needs root, and
// never touches the network of the machine it runs on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// timeLimit is far more than the demo needs; it ends one that hangs.
const timeLimit = 2 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "directory with sluice and sluice-cni")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	if err := run(ctx, *bin, newPrinter(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run goes through the steps; the first one that fails ends it.
func run(ctx context.Context, bin string, p *printer) (err error) {
	start := time.Now()
	d := &demo{printer: p, bin: bin}
	defer func() { err = errors.Join(err, d.close()) }()
	for i, s := range d.steps() {
		p.title(i+1, s.title)
		began := time.Now()
		if err := s.run(ctx); err != nil {
			p.failed(s.title)
			return fmt.Errorf("step %d, %s: %w", i+1, s.title, err)
		}
		p.done(time.Since(began))
	}
	p.summary(time.Since(start))
	return nil
}
