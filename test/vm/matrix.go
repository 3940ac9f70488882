// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/vm/qemu"
	"github.com/sluice-cni/sluice/test/vm/result"
	"github.com/sluice-cni/sluice/test/vm/suite"
)

// finished is what one kernel's machine had to say.
type finished struct {
	kernel  kernel
	run     *result.Run
	seconds float64
	cpu     float64
	// retries counts machines that ended without an exit status: the fault of
	// the emulator, or of a kernel that crashed.
	retries int
	status  int
	trouble []string
	err     error
}

func (o *options) runMatrix(ctx context.Context) (err error) {
	kernels, err := o.prepareKernels(ctx, o.kernels)
	if err != nil {
		return err
	}
	e, err := o.emulator(ctx)
	if err != nil {
		return err
	}
	version, _, err := e.Version(ctx)
	if err != nil {
		return err
	}
	if o.again {
		return o.judgeAgain(ctx, version, kernels)
	}
	w, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.accelerate(ctx, e, kernels[0]); err != nil {
		return err
	}
	all := make([]*finished, len(kernels))
	slots := make(chan struct{}, o.parallel)
	var running sync.WaitGroup
	for i, k := range kernels {
		slots <- struct{}{} // in the order asked for
		running.Go(func() {
			defer func() { <-slots }()
			all[i] = w.one(ctx, e, k)
		})
	}
	running.Wait()
	return w.report(fmt.Sprintf("QEMU %s, %s", version, e.Accel), all)
}

// accelerate chooses what e runs instructions by: it counts them, unless a machine
// really boots with KVM here.
func (w *work) accelerate(ctx context.Context, e *qemu.Emulator, k kernel) error {
	e.Accel = qemu.Counted
	if _, err := os.Stat("/dev/kvm"); err != nil || w.icount {
		return nil //nolint:nilerr // the ordinary case
	}
	initrd, err := w.initrd(k)
	if err != nil {
		return err
	}
	if e.ProbeKVM(ctx, k.Vmlinux, initrd, filepath.Join(w.dir, "kvm")) {
		e.Accel = qemu.KVM
	}
	return os.Remove(initrd)
}

// judgeAgain reads what the last machine of each kernel left behind.
func (o *options) judgeAgain(ctx context.Context, version string, kernels []kernel) error {
	w := &work{options: o, build: o.buildDir()}
	var err error
	if w.packages, err = o.find(ctx); err != nil {
		return err
	}
	all := make([]*finished, len(kernels))
	for i, k := range kernels {
		m := &qemu.Machine{Dir: w.logs(k)}
		all[i] = &finished{kernel: k}
		all[i].read(m, m.Left())
	}
	return w.report("QEMU "+version, all)
}

// one runs a kernel's machine, twice when the first ends without a status.
func (w *work) one(ctx context.Context, e *qemu.Emulator, k kernel) *finished {
	f := &finished{kernel: k}
	initrd, err := w.initrd(k)
	if err != nil {
		f.err = err
		return f
	}
	defer os.Remove(initrd)
	defer w.keepLogs(k)
	for {
		m := &qemu.Machine{
			Kernel: k.Vmlinux, Initrd: initrd, Mode: "run", Dir: filepath.Join(w.dir, "logs", k.Series),
			Timeout: 10*time.Minute + 4*w.timeout,
		}
		stop := follow(m.Results(), k.Series, w.verbose)
		o, err := e.Run(ctx, m)
		stop()
		if err != nil {
			f.err = err
			return f
		}
		f.read(m, o)
		if o.Finished || ctx.Err() != nil || f.retries == 1 {
			return f
		}
		f.retries++
		fmt.Fprintf(os.Stderr, "%s: no exit status (%v), trying again; see %s.first\n", k.Series, o.Err, filepath.Join(w.logs(k), "console.log"))
		_ = os.Rename(m.Console(), m.Console()+".first")
	}
}

// logs is where what a kernel's last machine said is kept.
func (w *work) logs(k kernel) string {
	dir := "logs"
	if w.exec != "" {
		dir = "exec-logs" // what -again reads is of tests
	}
	return filepath.Join(w.build, dir, k.Series)
}

// keepLogs moves the files there from the run's own directory, which other runs
// of the same tree do not write to. With -add, what was there comes first: a test's last run counts.
func (w *work) keepLogs(k kernel) {
	fresh := filepath.Join(w.dir, "logs", k.Series)
	if w.add {
		old, now := &qemu.Machine{Dir: w.logs(k)}, &qemu.Machine{Dir: fresh}
		_ = prepend(old.Results(), now.Results())
		_ = prepend(old.Console(), now.Console())
	}
	_ = os.RemoveAll(w.logs(k))
	_ = os.MkdirAll(filepath.Dir(w.logs(k)), 0o755)
	_ = os.Rename(fresh, w.logs(k))
}

// prepend puts what old holds before what the file name does.
func prepend(old, name string) error {
	before, err := os.ReadFile(old)
	if err != nil {
		return err
	}
	after, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, slices.Concat(before, []byte("\n"), after), 0o644)
}

// read takes the files of a machine that ended.
func (f *finished) read(m *qemu.Machine, o *qemu.Outcome) {
	raw, err := os.ReadFile(m.Results())
	if err != nil {
		f.err = err
		return
	}
	f.run, f.seconds, f.cpu, f.status, f.err = result.Parse(bytes.NewReader(raw)), o.Seconds, o.CPU, o.Status, nil
	if !o.Finished {
		f.err = fmt.Errorf("no exit status: %w; the console is kept", errors.Join(o.Err, errors.New("the machine ended by itself")))
	}
	trouble, err := qemu.Trouble(m.Console())
	f.trouble = trouble
	f.err = errors.Join(f.err, err)
}

// follow prints a line for every suite that ends, until it is stopped.
func follow(file, series string, verbose bool) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for seen, last := 0, false; ; {
			if raw, err := os.ReadFile(file); err == nil {
				run := result.Parse(bytes.NewReader(raw))
				for ; seen < len(run.Suites) && run.Suites[seen].Exit != -1; seen++ {
					fmt.Printf("%-7s", series)
					_ = result.Print(os.Stdout, run.Suites[seen])
					if verbose {
						_ = result.PrintTests(os.Stdout, run.Suites[seen])
					}
				}
			}
			if last {
				return
			}
			select {
			case <-done:
				last = true
			case <-time.After(2 * time.Second):
			}
		}
	}()
	return func() { close(done); <-gone }
}

// runShell boots one kernel with the tests in it and gives its console to the
// person who asked.
func (o *options) runShell(ctx context.Context) (err error) {
	kernels, err := o.prepareKernels(ctx, []string{o.shell})
	if err != nil {
		return err
	}
	e, err := o.emulator(ctx)
	if err != nil {
		return err
	}
	w, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	initrd, err := w.initrd(kernels[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "kernel %s. Tests: guest run %s/suites.json. Leave with exit, or ctrl-a x.\n", kernels[0].Release, guestHome)
	m := &qemu.Machine{Kernel: kernels[0].Vmlinux, Initrd: initrd, Mode: "shell", Dir: w.dir, Timeout: 24 * time.Hour, Terminal: true}
	out, err := e.Run(ctx, m)
	if err == nil && !out.Finished {
		err = errors.Join(errors.New("the machine ended without an exit status"), out.Err)
	}
	return err
}

func (o *options) list(ctx context.Context) error {
	packages, err := suite.Find(ctx, o.root, o.packages...)
	if err != nil {
		return err
	}
	for _, s := range o.kernels {
		if k, err := o.cached(s); err == nil {
			fmt.Printf("kernel  %-7s %s (fetched %s)\n", s, k.Release, k.Found.Format(time.DateOnly))
		} else {
			fmt.Printf("kernel  %-7s not fetched yet\n", s)
		}
	}
	for _, p := range packages {
		fmt.Printf("package %s\n", p.Path)
	}
	return nil
}

// buildHere builds the tests for this machine's own kernel.
func (o *options) buildHere(ctx context.Context) error {
	packages, err := o.find(ctx)
	if err != nil {
		return err
	}
	if err := suite.Build(ctx, o.root, o.build, packages); err != nil {
		return err
	}
	s := &suite.Set{Env: map[string]string{testbin.EnvDir: "bin"}, Args: o.testArgs(), Timeout: suite.Duration{Duration: o.timeout}}
	for _, p := range packages {
		s.Suites = append(s.Suites, suite.Suite{Package: p.Path, Binary: "tests/" + p.BinaryName(), Dir: p.Dir})
	}
	raw, err := s.JSON()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.build, "suites.json"), raw, 0o644)
}
