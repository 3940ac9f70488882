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
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

// outcome says how a test ended.
type outcome struct {
	result string   // passed, or what else
	needs  []string // features of the kernel that a test which did not run named
	left   string   // to which target a test is left that runs only when it is asked for
}

// passed is the result of a test that ran and did not fail.
const passed = "pass"

// runTests runs the tests of all rows, package by package, and returns how each ended.
func runTests(ctx context.Context, rows []row, timeout time.Duration) (map[testfuncs.Func]outcome, error) {
	byDir := map[string][]string{}
	for _, r := range rows {
		for _, f := range r.funcs {
			if !slices.Contains(byDir[f.Dir], f.Name) {
				byDir[f.Dir] = append(byDir[f.Dir], f.Name)
			}
		}
	}
	outcomes := map[testfuncs.Func]outcome{}
	for dir, names := range byDir {
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: %d tests\n", dir, len(names))
		if err := runPackage(ctx, dir, names, timeout, outcomes); err != nil {
			return nil, err
		}
	}
	return outcomes, ctx.Err()
}

func runPackage(ctx context.Context, dir string, names []string, timeout time.Duration, outcomes map[testfuncs.Func]outcome) error {
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
func readEvents(r io.Reader, dir string, outcomes map[testfuncs.Func]outcome) error {
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
			o := outcome{result: e.Action}
			if o.result == passed && skipped[top] > 0 && ran[top] == 0 {
				o.result = "skip of all its parts"
			}
			if o.result != passed && o.result != "fail" {
				o.needs, o.left = features(said[top]), leftTo(said[top])
			}
			outcomes[testfuncs.Func{Dir: dir, Name: top}] = o
			if o.result == "fail" {
				fmt.Fprint(os.Stderr, strings.Join(said[top], ""))
			}
		case e.Test == "" && e.Action == "fail":
			fmt.Fprint(os.Stderr, strings.Join(said[""], ""))
		}
	}
	return in.Err()
}

// features are the features of the kernel that a test's skips name.
func features(lines []string) []string {
	var out []string
	for _, l := range lines {
		if _, name, ok := strings.Cut(strings.TrimSpace(l), require.Prefix); ok && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// leftTo is the target that a skip by require.Asked names.
func leftTo(lines []string) string {
	for _, l := range lines {
		if _, target, ok := strings.Cut(strings.TrimSpace(l), require.LeftTo); ok {
			return target
		}
	}
	return ""
}

// guestLine is how test/vm says how a test ended: the package, perhaps a part of its tests, the test, perhaps a part of that.
var guestLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) (?:\d+/\d+ )?(Test\w+)(/.*)? \(`)

// runGuest runs tests again that need a feature which the machine's own kernel lacks, under a kernel in QEMU. Those that pass there
// have passed. The others keep what they need.
func runGuest(ctx context.Context, kernel string, outcomes map[testfuncs.Func]outcome) error {
	var names, dirs []string
	for f, o := range outcomes {
		if len(o.needs) == 0 {
			continue
		}
		if !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
		if dir := "./" + f.Dir; !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	slices.Sort(dirs)
	fmt.Fprintf(os.Stderr, "under Linux %s: %d tests\n", kernel, len(names))
	args := append([]string{"run", "./test/vm", "-v", "-kernels", kernel, "-run", "^(" + strings.Join(names, "|") + ")$"}, dirs...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	readGuest(string(out), kernel, outcomes)
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return nil // what did not run there is in the outcomes
	}
	return err
}

// readGuest takes what test/vm prints. A test whose parts were all skipped has not passed.
func readGuest(out, kernel string, outcomes map[testfuncs.Func]outcome) {
	type parts struct{ ran, skipped int }
	ended, of := map[testfuncs.Func]string{}, map[testfuncs.Func]parts{}
	for line := range strings.Lines(out) {
		m := guestLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		f := testfuncs.Func{Dir: m[2], Name: m[3]}
		p := of[f]
		switch {
		case m[4] == "":
			ended[f] = m[1]
		case m[1] == "SKIP":
			p.skipped++
		default:
			p.ran++
		}
		of[f] = p
	}
	for f, o := range outcomes {
		p := of[f]
		switch {
		case len(o.needs) == 0:
		case ended[f] == "FAIL":
			outcomes[f] = outcome{result: "fail under Linux " + kernel}
		case ended[f] == "PASS" && (p.ran > 0 || p.skipped == 0):
			outcomes[f] = outcome{result: passed}
		}
	}
}
