// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

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
