// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

// passed is the outcome of a test that ran and did not fail.
const passed = "pass"

// runTests runs the tests of all rows, package by package, and returns how each ended.
func runTests(ctx context.Context, rows []row, timeout time.Duration) (map[testfuncs.Func]string, error) {
	byDir := map[string][]string{}
	for _, r := range rows {
		for _, f := range r.funcs {
			if !slices.Contains(byDir[f.Dir], f.Name) {
				byDir[f.Dir] = append(byDir[f.Dir], f.Name)
			}
		}
	}
	outcomes := map[testfuncs.Func]string{}
	for dir, names := range byDir {
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: %d tests\n", dir, len(names))
		if err := runPackage(ctx, dir, names, timeout, outcomes); err != nil {
			return nil, err
		}
	}
	return outcomes, ctx.Err()
}

func runPackage(ctx context.Context, dir string, names []string, timeout time.Duration, outcomes map[testfuncs.Func]string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout="+timeout.String(), "-run=^("+strings.Join(names, "|")+")$", "./"+dir)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := readEvents(out, dir, outcomes)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return readErr // a test that failed is in the outcomes; one that did not begin is not
	}
	return errors.Join(err, readErr)
}

// readEvents takes the events of go test -json. What failed tests print goes to standard error.
func readEvents(r io.Reader, dir string, outcomes map[testfuncs.Func]string) error {
	said := map[string][]string{}
	skipped := map[string]int{}
	ran := map[string]int{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<22)
	for in.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(in.Bytes(), &e) != nil {
			continue // what the go command says of a build
		}
		top, _, sub := strings.Cut(e.Test, "/")
		switch {
		case e.Action == "output":
			said[top] = append(said[top], e.Output)
		case sub && e.Action == "skip":
			skipped[top]++
		case sub && e.Action == passed:
			ran[top]++
		case e.Test != "" && !sub && (e.Action == passed || e.Action == "fail" || e.Action == "skip"):
			outcome := e.Action
			if outcome == passed && skipped[top] > 0 && ran[top] == 0 {
				outcome = "skip of all its parts"
			}
			outcomes[testfuncs.Func{Dir: dir, Name: top}] = outcome
			if outcome == "fail" {
				fmt.Fprint(os.Stderr, strings.Join(said[top], ""))
			}
		case e.Test == "" && e.Action == "fail":
			fmt.Fprint(os.Stderr, strings.Join(said[""], ""))
		}
	}
	return in.Err()
}
