// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/test/vm/result"
)

// Files with what is expected of the kernels.
const (
	skipsFile   = "test/vm/testdata/skips.txt"
	budgetsFile = "test/vm/testdata/instructions.json"
)

// defaultRun selects every privileged test.
const defaultRun = "^TestPrivileged"

// report judges what the machines said, prints it, and writes the files that
// the options ask for. The error says that something is not as it should be.
func (w *work) report(emulator string, all []*finished) error {
	skips, err := result.ReadSkips(filepath.Join(w.root, skipsFile))
	if err != nil {
		return err
	}
	budgets, err := result.ReadBudgets(filepath.Join(w.root, budgetsFile))
	if err != nil {
		return err
	}
	var errs []error
	var columns []result.Column
	order := strings.Split(allKernels, ",")
	slices.SortStableFunc(all, func(a, b *finished) int {
		return slices.Index(order, a.kernel.Series) - slices.Index(order, b.kernel.Series)
	})
	complete := len(all) > 0
	for _, f := range all {
		columns = append(columns, result.Column{Series: f.kernel.Series, Run: f.run})
		complete = complete && len(f.missing) == 0
		if w.update {
			skips.Take(f.kernel.Series, f.run, w.everyTest(f.kernel.Series))
			budgets.Take(f.kernel.Series, f.run)
		}
		if wrong := w.judge(f, skips, budgets); len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s", f.kernel.Series, strings.Join(wrong, "\n    ")))
		}
	}
	fmt.Fprintln(w.out)
	if err := result.Tables(w.out, columns); err != nil {
		return err
	}
	fmt.Fprintf(w.out, "\n## Machines\n\n%s", machines(emulator, all))
	if w.update {
		errs = append(errs, skips.Write(filepath.Join(w.root, skipsFile), strings.Split(allKernels, ",")), budgets.Write(filepath.Join(w.root, budgetsFile)))
	}
	switch {
	case w.docs == "":
	case !complete:
		errs = append(errs, fmt.Errorf("%s is not written: results are missing", w.docs))
	default:
		errs = append(errs, w.writeDocs(columns))
	}
	return errors.Join(errs...)
}

// judge returns what is wrong with one kernel's run.
func (w *work) judge(f *finished, skips result.Skips, budgets result.Budgets) []string {
	var wrong []string
	for _, err := range f.errs {
		wrong = append(wrong, err.Error())
	}
	tests := 0
	for _, s := range f.run.Suites {
		tests += len(s.Tests)
		if !s.OK() {
			wrong = append(wrong, fmt.Sprintf("%s: %d tests failed, exit status %d", s.Package, s.Count(result.Fail)+s.Count(result.Lost), s.Exit))
		}
	}
	switch {
	case len(f.missing) > 0:
		wrong = append(wrong, "not run: "+strings.Join(f.missing, ", "))
	case tests == 0:
		wrong = append(wrong, "no test was run: does -run name one?")
	}
	wrong = append(wrong, f.trouble...)
	if len(f.missing) > 0 {
		return wrong // what is not there cannot be expected
	}
	wrong = append(wrong, skips.Check(f.kernel.Series, f.run, w.everyTest(f.kernel.Series))...)
	return append(wrong, budgets.Check(f.kernel.Series, f.run)...)
}

// machines lists what was run for each kernel.
func machines(emulator string, all []*finished) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%-7s %s: %d parts of the tests, %d kept; %d machines, %.0f s of processor time\n", f.kernel.Series, f.kernel.Release, f.units, f.kept, f.machines, f.cpu)
	}
	fmt.Fprintf(&b, "%s\n", emulator)
	return b.String()
}

// docsHead is the beginning of docs/dev/kernels.md.
const docsHead = `# Kernels

Written by ` + "`make kernel-matrix`" + `; do not edit. It runs the privileged tests of every package under
Debian's cloud kernels in QEMU. There is one kernel per step in what the kernel offers Sluice. The
oldest that Sluice supports comes first.

- A cell is the number of tests and subtests that passed, ` + "`-`" + ` that the package runs elsewhere.
- The first kernel runs all but the tests of the last table, and the newest leaves out those of the table before it.
  Those between load all programs, walk all test packets through them, and run a test of each other kind. 6.12, the first with tcx, also runs all tests of the loader and of real traffic.
- A real-time kernel (` + "`PREEMPT_RT`" + `) of 6.18 or later runs the programs only if it was built with ` + "`CONFIG_PREEMPT_RT_NEEDS_BH_LOCK`" + `: else a packet
  interrupts another one on its CPU, whose memory it would change. On such a node netfilter does the work, and ` + "`sluice doctor`" + ` says why.
- [kernel-testing.md](kernel-testing.md) says how to run one kernel, or get a shell in it.

`

// writeDocs writes docs/dev/kernels.md: from the results alone, so that the same
// sources and kernels give the same page.
func (w *work) writeDocs(columns []result.Column) error {
	var b strings.Builder
	b.WriteString(docsHead)
	err := result.Tables(&b, columns)
	groupTable(&b, "What runs under the first kernel only", "These tests would say the same under newer kernels.", firstOnly)
	groupTable(&b, "What runs under none of them", "These tests run with `make test` under the machine's own kernel.", hostOnly)
	fmt.Fprintf(&b, "\n## Source\n\nThe test binaries, the plugins and the files that the tests read have the digest `%s`.\n`go run ./test/vm -source` prints that of a tree.\n", w.source())
	return errors.Join(err, os.WriteFile(w.docs, []byte(b.String()), 0o644))
}

// groupTable writes a head, what is said below it, and a row for each group.
func groupTable(w io.Writer, head, text string, groups []group) {
	fmt.Fprintf(w, "\n## %s\n\n%s\n\n| packages | tests | about |\n|---|---|---|\n", head, text)
	for _, g := range groups {
		tests := g.tests.Pattern()
		if g.subtests != "" {
			tests = g.subtests
		}
		fmt.Fprintf(w, "| %s | `%s` | %s |\n", g.packages, strings.ReplaceAll(tests, "|", `\|`), g.reason)
	}
}

// source is the digest of what was tested.
func (w *work) source() string {
	all := sha256.New()
	fmt.Fprintln(all, w.inputs.Plugins)
	for _, p := range w.packages {
		fmt.Fprintln(all, p.Path, w.digests[p.Path])
	}
	return fmt.Sprintf("%x", all.Sum(nil))[:16]
}

func (o *options) printSource(ctx context.Context) error {
	w, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	fmt.Println(w.source())
	return w.close()
}
