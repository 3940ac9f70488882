// SPDX-License-Identifier: Apache-2.0

// Command hostile runs every test that stands behind a promise of SECURITY.md or
// a class of docs/dev/design/bug-classes.md, and says row by row what they showed. A
// row that names no test, one that does not exist, or one that did not run, fails.
// Tests that need a feature which the machine's kernel lacks run under another
// kernel, in QEMU. Without one, their rows are counted apart.
//
//	go run ./test/hostile                         all rows
//	go run ./test/hostile -match 'spoof|loopback'  some
//	go run ./test/hostile -list                   rows and their tests, without running any
//	go run ./test/hostile -kernel ''                this machine's kernel only
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

// pages have the rows, below the module.
var pages = []page{
	{file: "SECURITY.md", after: "### Promises", text: 0, tests: 2, kind: "promise"},
	{file: "docs/dev/design/bug-classes.md", after: "# Bug classes", text: 1, tests: 2, kind: "bug class"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		stop()
		os.Exit(1) // stop was called
	}
}

func run(ctx context.Context) error {
	match := flag.String("match", "", "only rows whose text a `pattern` matches, whatever the case")
	list := flag.Bool("list", false, "list rows and tests")
	kernel := flag.String("kernel", "6.12", "kernel `series` for tests that need a feature which this machine's kernel lacks; empty: none")
	timeout := flag.Duration("timeout", time.Hour, "limit for one package's tests")
	flag.Parse()
	wanted, err := regexp.Compile("(?i)" + *match)
	if err != nil {
		return err
	}
	funcs, err := testfuncs.Find(ctx)
	if err != nil {
		return err
	}
	var rows []row
	for _, p := range pages {
		text, err := os.ReadFile(p.file)
		if err != nil {
			return err
		}
		some, err := p.rows(string(text), funcs)
		if err != nil {
			return err
		}
		rows = append(rows, some...)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !wanted.MatchString(r.text) })
	if len(rows) == 0 {
		return fmt.Errorf("no row matches %q", *match)
	}
	if *list {
		for _, r := range rows {
			fmt.Printf("%s: %s\n", r.kind, r.text)
			for _, f := range r.funcs {
				fmt.Printf("    %s\n", f)
			}
		}
		return nil
	}
	outcomes, err := runTests(ctx, rows, *timeout)
	if err != nil {
		return err
	}
	if *kernel != "" {
		if err := runGuest(ctx, *kernel, outcomes); err != nil {
			return err
		}
	}
	return report(rows, outcomes)
}

// report prints each row. A row that needs another kernel holds as far as it ran, and is not counted among those that hold.
func report(rows []row, outcomes map[testfuncs.Func]outcome) error {
	bad, lacking := 0, 0
	for _, r := range rows {
		wrong, needs, left := r.judge(outcomes)
		verdict := "ok"
		switch {
		case len(wrong) > 0:
			verdict = "FAIL"
			bad++
		case len(needs) > 0:
			verdict = "NEED"
			lacking++
		}
		fmt.Printf("%-4s %s: %s (%d tests)\n", verdict, r.kind, r.text, len(r.funcs))
		for _, line := range slices.Concat(wrong, needs, left) {
			fmt.Printf("       %s\n", line)
		}
	}
	fmt.Printf("%d rows hold, %d need another kernel, %d fail\n", len(rows)-bad-lacking, lacking, bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d rows do not hold", bad, len(rows))
	}
	return nil
}
