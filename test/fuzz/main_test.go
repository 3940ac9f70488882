// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// module has a target that finds something soon, and one that never does. The blanks before
// func keep them out of what testfuncs finds here.
const module = `package m

import "testing"

 func FuzzBad(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {
		if n > 1 {
			t.Fatal("too many")
		}
	})
}

 func FuzzGood(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {})
}
`

// A target that finds something fails the run, by name, and one that finds nothing does not.
func TestRunTargets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.25.0\n", "m_test.go": module} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	targets := []target{{Dir: ".", Name: "FuzzBad"}, {Dir: ".", Name: "FuzzGood"}}
	logs := t.TempDir()
	err := all(t.Context(), targets, times(2, 10*time.Second, 0, 0), 2, logs)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 targets failed: . FuzzBad;") {
		t.Errorf("%v", err)
	}
	if err := all(t.Context(), targets[1:], times(1, time.Second, 0, 0), 2, logs); err != nil {
		t.Error(err)
	}
}

// Each target has a turn: the parts are those of all hashes, and together all targets.
func TestTurns(t *testing.T) {
	const targets, turns = 7, 3
	had := make([]int, targets)
	for digit := range 16 {
		turn, err := partOf(fmt.Sprintf("0000000%x%s", digit, strings.Repeat("f", 32)), turns)
		if err != nil || turn != digit%turns {
			t.Errorf("hash ending in %x: part %d, %v", digit, turn, err)
		}
		for i, d := range times(targets, time.Second, turns, turn) {
			if d == longTime {
				had[i]++
			} else if d != time.Second {
				t.Errorf("target %d: %v", i, d)
			}
		}
	}
	if slices.Contains(had, 0) {
		t.Errorf("turns: %v", had)
	}
	for _, bad := range []string{"", "12", "not a hash at all"} {
		if _, err := partOf(bad, turns); err == nil {
			t.Errorf("%q is a hash", bad)
		}
	}
}

func TestSummary(t *testing.T) {
	out := "fuzz: elapsed: 0s, gathering baseline coverage: 0/3 completed\nfuzz: elapsed: 3s, execs: 1200 (400/sec), new interesting: 2 (total: 5)\nfuzz: elapsed: 4s, execs: 1600 (400/sec), new interesting: 3 (total: 6)\nPASS\n"
	if got, want := summary([]byte(out)), "     1600 inputs in 4s, 3 of 6 new"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Go before 1.27 fails a target whose time ends at a bad moment. That is no finding; one that hangs or fails is.
func TestRanOut(t *testing.T) {
	const end = "fuzz: elapsed: 3s, gathering baseline coverage: 204/2206 completed\n--- FAIL: FuzzX (3.18s)\n    context deadline exceeded\nFAIL\nexit status 1\n"
	for text, want := range map[string]bool{
		end: true,
		"--- FAIL: FuzzX (0.10s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: bad\n\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n": false,
		"--- FAIL: FuzzX (0.10s)\n    x_test.go:9: context deadline exceeded\nFAIL\n":                                                                  false,
		end + "    Failing input written to testdata/fuzz/FuzzX/1\n":                                                                                   false,
		end + "panic: fuzzing process hung or terminated unexpectedly\n":                                                                               false,
		"": false,
	} {
		if got := ranOut([]byte(text)); got != want {
			t.Errorf("%t of %q", got, text)
		}
	}
}
