// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/bench/flame"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// runFlame draws where the CPU time of the plugins goes while pods come and go. It needs perf(1), and runs in the repository: the release's
// programs have no symbols, so it builds its own.
func runFlame(ctx context.Context, args []string) (err error) {
	a := &adds{common: common{only: []string{subject.Sluice}}, pods: []int{1}}
	f := flag.NewFlagSet("bench flame", flag.ContinueOnError)
	f.IntVar(&a.cycles, "cycles", 200, "ADD/DEL pairs that are recorded")
	name := f.String("plugin", onBridge, "plugin or chain to look at")
	out := f.String("out", filepath.Join("bench", "out", "flame.svg"), "the picture, SVG")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	todo, err := choose(*name)
	if err != nil {
		return err
	}
	if len(todo) != 1 || a.cycles < 1 {
		return errors.New("one -plugin and at least one of -cycles")
	}
	defer func() { err = errors.Join(err, a.close()) }()
	dir, err := a.tempDir()
	if err != nil {
		return err
	}
	if err := buildWithSymbols(ctx, dir); err != nil {
		return err
	}
	a.peers, a.sluiceBin, a.plugins = subject.Sluice, dir, append(todo[0].types(), "host-local")
	if err := a.prepare(ctx); err != nil {
		return err
	}
	a.describe(os.Stdout)
	p, err := a.build(ctx, a.suites[0], todo[0], 1)
	if p != nil {
		defer func() { err = errors.Join(err, p.lab.Close()) }()
	}
	if err != nil {
		return err
	}
	if err := a.cycle(ctx, todo[0], p, 0, 1); err != nil { // the first ADD loads the programs
		return err
	}
	root, err := sample(ctx, filepath.Join(dir, "perf.data"), a.plugins, func() error {
		for i := range a.cycles {
			if err := a.cycle(ctx, todo[0], p, i+1, 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var picture bytes.Buffer
	if err := root.Draw(&picture); err != nil {
		return err
	}
	for _, c := range root.Children() {
		fmt.Printf("  %-12s %5.1f %% of the samples\n", c.Name, 100*float64(c.Samples)/float64(root.Samples))
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	fmt.Printf("%d samples of %d ADD/DEL pairs: %s\n", root.Samples, a.cycles, *out)
	return os.WriteFile(*out, picture.Bytes(), 0o644)
}

// buildWithSymbols builds the programs whose time is looked at.
func buildWithSymbols(ctx context.Context, dir string) error {
	args := []string{"build", "-buildvcs=false", "-trimpath", "-tags", "grpcnotrace", "-o", dir + "/"}
	for _, name := range testbin.Programs() {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}

// perfStarts is more than perf takes to begin.
const perfStarts = time.Second

// sample runs f under perf, and returns the samples of the programs.
func sample(ctx context.Context, data string, programs []string, f func() error) (*flame.Frame, error) {
	const hertz = "4999" // no multiple of a timer's rate
	perf := exec.CommandContext(ctx, "perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", hertz, "-o", data)
	var said bytes.Buffer
	perf.Stderr = &said
	if err := perf.Start(); err != nil {
		return nil, fmt.Errorf("perf, of the package linux-perf: %w", err)
	}
	time.Sleep(perfStarts)
	err := f()
	stopped := perf.Process.Signal(unix.SIGINT)
	waited := perf.Wait()
	if st, ok := perf.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() && st.Signal() == unix.SIGINT {
		waited = nil // it writes its file, then ends by the signal
	}
	if err := errors.Join(err, stopped, waited); err != nil {
		return nil, fmt.Errorf("%w: %s", err, said.Bytes())
	}
	script := exec.CommandContext(ctx, "perf", "script", "-i", data, "-F", "comm,ip,sym", "--no-inline", "--kallsyms", "/proc/kallsyms")
	script.Stderr = &said
	pipe, err := script.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := script.Start(); err != nil {
		return nil, err
	}
	root, err := flame.Read(pipe, func(program string) bool { return slices.Contains(programs, program) })
	if err := errors.Join(err, script.Wait()); err != nil {
		return nil, fmt.Errorf("perf script: %w: %s", err, said.Bytes())
	}
	return root, nil
}
