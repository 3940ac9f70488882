// SPDX-License-Identifier: Apache-2.0

// Command vm runs the privileged tests in virtual machines with other
// kernels: Debian's, from the machine's own mirror, under QEMU.
//
//	go run ./test/vm                                  all kernels, all packages
//	go run ./test/vm -kernels 5.10,6.12 ./loader      some of both
//	go run ./test/vm -kernels 6.12 -run 'TestPrivilegedVLAN' ./plugins/main/...
//	go run ./test/vm -shell 6.1                       a shell in one
//	go run ./test/vm -kernels 6.12 -with bin/bench -exec 'bench bandwidth -h'
//	                                                       any command in some
//	go run ./test/vm -list                            kernels and packages
//
// docs/dev/kernel-testing.md has more. It needs Debian (apt, dpkg), the go command
// and the tools that the tests use, and neither root nor KVM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/vm/suite"
)

// allKernels is the matrix: the floor, the last without tcx, the first with
// netkit, a later one, and whatever is newest.
const allKernels = "5.10,6.1,6.12,6.18,newest"

// With -quick: the floor, and the first kernel of the matrix with tcx and all
// qdiscs.
const quickKernels = "5.10,6.12"

// quickPackages and quickRun are what -quick runs: every program past the
// verifier and within its budget, a walk of each family, the loader's probes
// and ways of attaching, the plugins whose devices and qdiscs not every kernel
// has, and real traffic through the whole. An emulated machine takes seconds to
// load the programs, and most tests do, so this names what runs, not what does
// not.
var quickPackages = []string{
	"./bpf/tests", "./loader", "./pkg/rtnl", "./plugins/main/ipvlan", "./plugins/meta/bandwidth", "./plugins/meta/vrf",
	"./test/e2e/datapath", "./test/e2e/hostport", "./test/e2e/interfaces", "./test/e2e/masquerade", "./test/e2e/netfilter", "./test/e2e/policy",
}

var quickRun = suite.Names{
	"Load$", "LoadXDP$", "Instructions$", "HostPort$", "FastPathImmediate$", "Masquerade$", "Hairpin$", "AntiSpoof$", "Untouched$",
	"EnableDisable$", "ProbesMatchTable$", "AttachChanges$", "MapMemory$", "PodnsDevice$", "Survey$", "ClassesAndFilters$",
	"Modes$", "EDT$", "Join$", "AttachModes$", "Fallback$", "VLANPod$", "DummyPod$", "PolicyIsolated$", "InsidePortmapTraffic$",
}

// quickFloor are those of quickPackages that run under the first of several kernels only: real traffic takes CI's time, and a machine with
// a new kernel runs all of it by "make test".
var quickFloor = []string{"./test/e2e/hostport", "./test/e2e/masquerade", "./test/e2e/netfilter", "./test/e2e/policy"}

type options struct {
	kernels  []string
	packages []string
	root     string // of the module
	cache    string
	run      string
	skip     string
	shell    string
	exec     string   // a command instead of tests
	with     []string // files that it needs
	memory   int64    // megabytes for it, beside what tests need
	build    string
	docs     string
	quick    bool
	refresh  bool
	again    bool
	fresh    bool
	source   bool
	update   bool
	verbose  bool
	icount   bool

	reference bool // tests have upstream's plugins

	parallel int
	patience float64
	timeout  time.Duration
	out      io.Writer // gets the results
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, list, err := parseFlags(ctx)
	if err == nil {
		switch {
		case list:
			err = o.list(ctx)
		case o.source:
			err = o.printSource(ctx)
		case o.build != "":
			err = o.buildHere(ctx)
		case o.shell != "":
			err = o.runShell(ctx)
		case o.exec != "":
			err = o.runExec(ctx)
		default:
			err = o.runMatrix(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		stop()
		os.Exit(1) // stop was called
	}
}

func parseFlags(ctx context.Context) (o options, list bool, err error) {
	o.out = os.Stdout
	kernels := flag.String("kernels", allKernels, "comma-separated kernel `series`, or newest")
	flag.BoolVar(&o.quick, "quick", false, "only the oldest kernel and one with tcx and sch_fq, and leave out what takes long")
	flag.StringVar(&o.run, "run", defaultRun, "tests to run, as go test's -run")
	flag.StringVar(&o.skip, "skip", "", "tests to leave out, as go test's -skip")
	flag.StringVar(&o.shell, "shell", "", "boot one kernel `series` and give a shell in it")
	flag.StringVar(&o.exec, "exec", "", "run a `command` of the shell instead of tests")
	with := flag.String("with", "", "comma-separated `files` that -exec finds in its PATH")
	flag.Int64Var(&o.memory, "memory", 0, "`megabytes` that -exec gets beside what tests need")
	flag.StringVar(&o.build, "build", "", "only build the tests into a `directory`, to be run there by DIR/guest run DIR/suites.json")
	flag.StringVar(&o.docs, "docs", "", "write the table to a `file`")
	flag.BoolVar(&list, "list", false, "list kernels and packages")
	flag.BoolVar(&o.refresh, "refresh", false, "look for newer packages of the kernels")
	flag.BoolVar(&o.again, "again", false, "judge the results that are kept, without booting a machine")
	flag.BoolVar(&o.fresh, "fresh", false, "run everything, also what is kept from earlier runs")
	flag.BoolVar(&o.source, "source", false, "build, and print the digest of what would be tested")
	flag.BoolVar(&o.update, "update", false, "take what is seen as what is expected: skips, instruction budgets")
	flag.BoolVar(&o.verbose, "v", false, "print what the tests print")
	flag.BoolVar(&o.reference, "reference", false, "with -run: tests that compare with upstream's plugins have them")
	flag.BoolVar(&o.icount, "icount", false, "count instructions even where KVM would work: for what is timed inside")
	flag.IntVar(&o.parallel, "parallel", 2, "`machines` at a time")
	flag.Float64Var(&o.patience, "patience", 10, "`factor` by which tests wait longer than on an ordinary machine")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Hour, "limit for one package's tests")
	flag.Parse()
	if o.quick && *kernels == allKernels {
		*kernels = quickKernels
	}
	o.kernels = strings.Split(*kernels, ",")
	o.packages = flag.Args()
	if err := o.check(); err != nil {
		return o, list, err
	}
	if o.quick && o.run == defaultRun {
		o.run = quickRun.Pattern()
	}
	if o.quick && len(o.packages) == 0 {
		o.packages = quickPackages
	}
	if *with != "" {
		o.with = strings.Split(*with, ",")
	}
	if o.root, err = testbin.Root(); err != nil {
		return o, list, err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return o, list, err
	}
	o.cache = filepath.Join(base, "sluice-kernels")
	return o, list, os.MkdirAll(o.cache, 0o755)
}

// check refuses flags that make no sense.
func (o *options) check() error {
	if o.icount && o.shell != "" {
		return errors.New("-icount has no effect on a shell, whose clock has to be yours")
	}
	if o.parallel < 1 {
		return fmt.Errorf("-parallel %d: no machine would ever be started", o.parallel)
	}
	if o.docs != "" && (!o.everything() || o.quick || len(o.packages) > 0 || !sameKernels(o.kernels)) {
		return errors.New("-docs needs all kernels, packages and tests: its table is of everything")
	}
	if o.reference && o.everything() {
		return errors.New("-reference is for tests that -run names")
	}
	if o.again && (o.fresh || !o.everything()) {
		return errors.New("-again judges what is kept: not with -fresh, nor of tests that -run or -skip select")
	}
	return nil
}

// sameKernels reports whether these are all kernels, in any order.
func sameKernels(some []string) bool {
	all := strings.Split(allKernels, ",")
	slices.Sort(all)
	return slices.Equal(slices.Sorted(slices.Values(some)), all)
}
