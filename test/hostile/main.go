// SPDX-License-Identifier: Apache-2.0

// Command hostile runs every test that stands behind a promise of SECURITY.md or
// a class of docs/design/bug-classes.md, and says row by row what they showed. A
// row that names no test, one that does not exist, or one that did not run, fails.
//
//	go run ./test/hostile                         all rows
//	go run ./test/hostile -match 'spoof|loopback'  some
//	go run ./test/hostile -list                   rows and their tests, without running any
package main

import (
	"context"
	"errors"
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
	{file: "docs/design/bug-classes.md", after: "# Bug classes", text: 1, tests: 2, kind: "bug class"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func run(ctx context.Context) error {
	match := flag.String("match", "", "only rows whose text a `pattern` matches, whatever the case")
	list := flag.Bool("list", false, "list rows and tests")
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
	bad := 0
	for _, r := range rows {
		wrong := r.judge(outcomes)
		fmt.Printf("%-4s %s: %s (%d tests)\n", map[bool]string{true: "ok", false: "FAIL"}[len(wrong) == 0], r.kind, r.text, len(r.funcs))
		for _, w := range wrong {
			fmt.Printf("       %s\n", w)
		}
		if len(wrong) > 0 {
			bad++
		}
	}
	if bad > 0 {
		return errors.New(fmt.Sprint(bad, " of ", len(rows), " rows do not hold"))
	}
	fmt.Printf("%d rows hold\n", len(rows))
	return nil
}
