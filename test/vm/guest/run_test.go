// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// A test binary that a signal ends, as the kernel does when memory is short, has
// ended: the runner's table must not say that its machine did.
func TestRunSuiteExit(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   int
	}{{"exit 0", 0}, {"exit 2", 2}, {"kill -9 $$", 128 + 9}} {
		binary := filepath.Join(t.TempDir(), "x.test")
		if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		set := &suite.Set{Timeout: suite.Duration{Duration: time.Minute}}
		r, err := runSuite(set, suite.Suite{Package: "x", Binary: binary, Dir: t.TempDir()}, false)
		if err != nil {
			t.Fatal(err)
		}
		if r.Exit != tt.want {
			t.Errorf("%s: exit status %d, want %d", tt.script, r.Exit, tt.want)
		}
	}
}
