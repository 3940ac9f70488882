// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
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
	for _, f := range all {
		if f.run == nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.kernel.Series, f.err))
			continue
		}
		columns = append(columns, result.Column{Series: f.kernel.Series, Run: f.run})
		if w.update {
			skips.Take(f.kernel.Series, f.run, w.everyTest(f.kernel.Series))
			budgets.Take(f.kernel.Series, f.run)
		}
		if wrong := w.judge(f, skips, budgets); len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s", f.kernel.Series, strings.Join(wrong, "\n    ")))
		}
	}
	fmt.Println()
	if err := result.Tables(os.Stdout, columns); err != nil {
		return err
	}
	fmt.Printf("\n## Machines\n\n%s", machines(emulator, all))
	if w.update {
		errs = append(errs, skips.Write(filepath.Join(w.root, skipsFile), strings.Split(allKernels, ",")), budgets.Write(filepath.Join(w.root, budgetsFile)))
	}
	if w.docs != "" {
		errs = append(errs, writeDocs(w.docs, columns))
	}
	return errors.Join(errs...)
}

// judge returns what is wrong with one kernel's run.
func (w *work) judge(f *finished, skips result.Skips, budgets result.Budgets) []string {
	var wrong []string
	if f.err != nil {
		wrong = append(wrong, f.err.Error())
	}
	well, tests := true, 0
	for _, s := range f.run.Suites {
		tests += len(s.Tests)
		if !s.OK() {
			well = false
			wrong = append(wrong, fmt.Sprintf("%s: %d tests failed, exit status %d", s.Package, s.Count(result.Fail)+s.Count(result.Lost), s.Exit))
		}
	}
	missing := w.notRun(f.run)
	switch {
	case f.err != nil: // which says why
	case len(missing) > 0:
		wrong = append(wrong, "not run: "+strings.Join(missing, ", "))
	case well && f.status != 0:
		wrong = append(wrong, fmt.Sprintf("exit status %d, although no test in the report failed", f.status))
	case tests == 0:
		wrong = append(wrong, "no test was run: does -run name one?")
	}
	for _, line := range f.trouble {
		wrong = append(wrong, "on the console: "+line)
	}
	wrong = append(wrong, skips.Check(f.kernel.Series, f.run, w.everyTest(f.kernel.Series))...)
	return append(wrong, budgets.Check(f.kernel.Series, f.run)...)
}

// notRun returns the packages that a report lacks. What it has besides, of an
// earlier machine, stands for none of them.
func (w *work) notRun(run *result.Run) []string {
	var missing []string
	for _, p := range w.packages {
		if !slices.ContainsFunc(run.Suites, func(s *result.Suite) bool { return s.Package == p.Path }) {
			missing = append(missing, p.Path)
		}
	}
	return missing
}

// machines lists how each machine did.
func machines(emulator string, all []*finished) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%-7s %s: %.0f s, %.0f s of processor time, exit status %d", f.kernel.Series, f.kernel.Release, f.seconds, f.cpu, f.status)
		if f.retries > 0 {
			fmt.Fprintf(&b, ", started %d times: the first ended without an exit status", f.retries+1)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "%s\n", emulator)
	return b.String()
}

// docsHead is the beginning of docs/kernels.md.
const docsHead = `# Kernels

Written by ` + "`make kernel-matrix`" + `; do not edit. It runs the privileged tests of every package under
Debian's cloud kernels in QEMU. There is one kernel per step in what the kernel offers Sluice. The
oldest that Sluice supports comes first.

- A cell is the number of tests and subtests that passed.
- Tests of test/e2e about netfilter's tables, about all backends, and about DHCP run only under the
  first and the last kernel.
- [kernel-testing.md](kernel-testing.md) says how to run one kernel, or get a shell in it.

`

func writeDocs(file string, columns []result.Column) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.WriteString(docsHead)
	return errors.Join(err, result.Tables(f, columns), f.Close())
}
