// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/vm/qemu"
	"github.com/sluice-cni/sluice/test/vm/result"
	"github.com/sluice-cni/sluice/test/vm/suite"
	"github.com/sluice-cni/sluice/test/vm/unit"
)

// finished is what the machines of one kernel had to say, now or in an earlier run.
type finished struct {
	kernel kernel
	run    *result.Run
	// units are those of the kernel, kept how many were not run again, and
	// missing the names of those that nothing is known of.
	units, kept int
	missing     []string
	trouble     []string
	// machines were started, and took so many seconds of processor time.
	machines int
	cpu      float64
	errs     []error
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
	w, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.accelerate(ctx, e, kernels[0]); err != nil {
		return err
	}
	w.inputs.Machine = fmt.Sprintf("QEMU %s, %s, patience %v", version, e.Accel, w.patience)
	s := &session{work: w, store: w.store(), boot: w.bootWith(e)}
	all, err := s.runAll(ctx, kernels)
	return errors.Join(err, w.report(fmt.Sprintf("QEMU %s, %s", version, e.Accel), all))
}

// store is where results are kept: of selected tests only as long as the run.
func (w *work) store() *unit.Store {
	if !w.everything() {
		return &unit.Store{Dir: filepath.Join(w.dir, "results")}
	}
	s := &unit.Store{Dir: filepath.Join(w.cache, "results"), Fresh: w.fresh}
	s.Prune()
	return s
}

// accelerate chooses what e runs instructions by: it counts them, unless a machine
// really boots with KVM here.
func (w *work) accelerate(ctx context.Context, e *qemu.Emulator, k kernel) error {
	e.Accel = qemu.Counted
	if _, err := os.Stat("/dev/kvm"); err != nil || w.icount {
		return nil //nolint:nilerr // the ordinary case
	}
	initrd, err := w.initrd(k, "kvm", w.set(k.Series, nil), nil)
	if err != nil {
		return err
	}
	if e.ProbeKVM(ctx, k.Vmlinux, initrd, filepath.Join(w.dir, "kvm")) {
		e.Accel = qemu.KVM
	}
	return os.Remove(initrd)
}

// bootWith boots machines by e.
func (w *work) bootWith(e *qemu.Emulator) bootFunc {
	return func(ctx context.Context, k kernel, name string, units []unit.Unit, ended func(i int, report string, trouble []string)) (*booted, error) {
		var packages []suite.Package
		for _, u := range units {
			if !slices.ContainsFunc(packages, func(p suite.Package) bool { return p.Path == u.Package.Path }) {
				packages = append(packages, u.Package)
			}
		}
		initrd, err := w.initrd(k, k.Series+"-"+name, w.set(k.Series, units), packages)
		if err != nil {
			return nil, err
		}
		defer os.Remove(initrd)
		m := &qemu.Machine{
			Kernel: k.Vmlinux, Initrd: initrd, Mode: "run", Dir: filepath.Join(w.logs(k), name), Timeout: 10*time.Minute + 4*w.timeout,
		}
		f := &follower{machine: m, ended: ended}
		stop := f.follow()
		o, err := e.Run(ctx, m)
		stop()
		if err != nil {
			return nil, err
		}
		return &booted{Outcome: o, rest: f.rest, trouble: f.trouble}, nil
	}
}

// logs is where what a kernel's last machines said is kept.
func (w *work) logs(k kernel) string {
	dir := "logs"
	if w.exec != "" {
		dir = "exec-logs"
	}
	return filepath.Join(w.build, dir, k.Series)
}

// keepLogs moves the files of a command's machine there from the run's own directory.
func (w *work) keepLogs(k kernel) {
	_ = os.RemoveAll(w.logs(k))
	_ = os.MkdirAll(filepath.Dir(w.logs(k)), 0o755)
	_ = os.Rename(filepath.Join(w.dir, "logs", k.Series), w.logs(k))
}

// follower reads what a machine writes, while it does.
type follower struct {
	machine *qemu.Machine
	ended   func(i int, report string, trouble []string)
	seen    int
	alarms  int
	// rest is the report of what did not end, trouble what came after the last end.
	rest    string
	trouble []string
}

func (f *follower) read() {
	raw, err := os.ReadFile(f.machine.Results())
	if err != nil {
		return
	}
	// The console second: what it says of a unit came before the unit's end.
	alarms, _ := qemu.Trouble(f.machine.Console())
	parts, rest := result.Parts(string(raw))
	f.rest, f.trouble = rest, alarms[f.alarms:]
	for ; f.seen < len(parts); f.seen++ {
		f.ended(f.seen, parts[f.seen], f.trouble)
		f.alarms, f.trouble = len(alarms), nil
	}
}

// follow reads every few seconds, until it is stopped.
func (f *follower) follow() (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-done:
				f.read()
				return
			case <-time.After(2 * time.Second):
				f.read()
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
	var whole []unit.Unit
	for _, p := range w.packages {
		whole = append(whole, unit.Whole(p, w.run, strings.TrimPrefix(w.skipArg(w.skip), skipFlag)))
	}
	initrd, err := w.initrd(kernels[0], "shell", w.set(kernels[0].Series, whole), w.packages)
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
