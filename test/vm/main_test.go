// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// A list of tests names tests that exist: one that was renamed would run where it cannot, or no more.
func TestListedTestsExist(t *testing.T) {
	var tests []string
	declared := regexp.MustCompile(`(?m)^func TestPrivileged(\w+)\(`)
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		for _, m := range declared.FindAllSubmatch(source, -1) {
			tests = append(tests, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]suite.Names{"NotHere": suite.NotHere, "quickRun": quickRun}
	for list, groups := range map[string][]group{"firstOnly": firstOnly, "hostOnly": hostOnly} {
		for i, g := range groups {
			lists[fmt.Sprintf("%s %d", list, i)] = g.tests
		}
	}
	for list, names := range lists {
		for _, name := range names {
			if !slices.ContainsFunc(tests, regexp.MustCompile("^"+name).MatchString) {
				t.Errorf("%s has %q: there is no such test", list, name)
			}
		}
	}
}

// Flags by which a run would wait for ever, or do nothing, are refused.
func TestFlagsRefused(t *testing.T) {
	args, flags := os.Args, flag.CommandLine
	t.Cleanup(func() { os.Args, flag.CommandLine = args, flags })
	for _, tt := range []struct{ args, want string }{
		{"-parallel 0", "-parallel"},
		{"-parallel -1", "-parallel"},
		{"-icount -shell 6.1", "-icount"},
	} {
		os.Args, flag.CommandLine = append([]string{"kernels"}, strings.Fields(tt.args)...), flag.NewFlagSet("kernels", flag.ContinueOnError)
		if _, _, err := parseFlags(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.args, err)
		}
	}
}

// A list of no tests at all would run well on any machine.
func TestBuildNothing(t *testing.T) {
	dir := t.TempDir()
	o := &options{root: "../..", build: dir, packages: []string{"./pkg/cnierr"}}
	if err := o.buildHere(t.Context()); err == nil || !strings.Contains(err.Error(), "./pkg/cnierr") {
		t.Error(err)
	}
}
