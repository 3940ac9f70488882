// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The denylist is what was added, until it is taken out.
func TestDeny(t *testing.T) {
	n := newFakeNode()
	steps := []struct {
		args, want string
		status     int
	}{
		{"deny list", "203.0.113", 0},
		{"deny add 198.51.100.0/24 2001:db8:bad::/48", "198.51.100.0/24", 0},
		{"deny add 300.1.1.1/8", "300.1.1.1", 1},
		{"deny list", "2001:db8:bad::/48", 0},
		{"deny del 198.51.100.0/24", "198.51.100.0/24", 0},
		{"deny del 198.51.100.0/24", "not in the denylist", 1},
		{"deny list -o json", "2001:db8:bad::/48", 0},
	}
	for _, s := range steps {
		out, errs, status := runTool(t, n, 0, strings.Fields(s.args)...)
		if status != s.status || !strings.Contains(out+errs, s.want) {
			t.Errorf("%s: %d, %q %q, want %d and %q", s.args, status, out, errs, s.status, s.want)
		}
	}
	if out, _, _ := runTool(t, n, 0, "deny", "list"); strings.Contains(out, "198.51.100") {
		t.Errorf("still there:\n%s", out)
	}
}

// "drops --watch" prints the list again and again, until it is interrupted.
func TestDropsWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		a := &app{out: w, err: w, node: newFakeNode()}
		done <- a.run(ctx, []string{"drops", "--watch", "1ms"})
		_ = w.Close()
	}()
	lists, s := 0, bufio.NewScanner(r)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), "spoofed-ip:") {
			if lists++; lists == 3 {
				cancel()
			}
		}
	}
	if status := <-done; status != 0 || lists < 3 {
		t.Errorf("%d lists, status %d", lists, status)
	}
}

var flagName = regexp.MustCompile(`--[a-z-]+`)

// Every command is run by a test, and so is every flag of it: their words are in one.
func TestEveryCommandIsTested(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b)
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		path, nested := strings.CutPrefix(c.CommandPath(), "sluice ")
		if !nested || !c.Runnable() || c.Hidden || strings.HasPrefix(path, "completion") || path == "help" {
			return
		}
		found := false
		for _, words := range []string{`"` + path + ` `, `, "` + path + `"`, `"` + strings.ReplaceAll(path, " ", `", "`) + `",`} {
			found = found || strings.Contains(text.String(), words)
		}
		if !found {
			t.Errorf("no test runs sluice %s", path)
		}
		for _, flag := range flagName.FindAllString(c.LocalNonPersistentFlags().FlagUsages(), -1) {
			if flag != "--help" && !strings.Contains(text.String(), flag) {
				t.Errorf("no test runs sluice %s with %s", path, flag)
			}
		}
	}
	visit(newRoot(&app{node: newFakeNode()}))
}
