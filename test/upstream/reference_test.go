// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The suites that any kernel can run and that are over soon; "make upstream-suites" runs the others.
func TestPrivilegedUpstreamSuites(t *testing.T) {
	chosen, err := choose("loopback,ptp,tap,host-local,static")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	if err := prepare(t.Context(), dir, out, chosen); err != nil {
		t.Fatal(err)
	}
	if err := runAll(t.Context(), out, chosen); err != nil {
		t.Error(err)
	}
}

func TestPlainName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"bridge Operations [0.4.0] (3) configures a bridge":        "bridge Operations configures a bridge",
		"base functionality Works with a valid 1.0.0 config":       "base functionality Works with a valid config",
		`Operations [1.1.0] uses "10.1.2.0/24" with ipMasq "none"`: `Operations uses "10.1.2.0/24" with ipMasq "none"`,
	} {
		if got := plainName(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	known := differences{Differences: []difference{
		{"bridge", "known", "r"}, {"bridge", "mended", "r"}, {"bridge", "not run", "r"}, {"bridge", "needs a device", "r"}, {"ptp", "other", "r"},
	}}
	theirs := result{failed: map[string]string{"[1.0.0] needs a device": "x", "[1.0.0] broken": "x"}}
	ours := result{
		ran: map[string]int{"known": 2, "mended": 2, "needs a device": 1, "broken": 1, "worse": 2, "fine": 2},
		failed: map[string]string{
			"[1.0.0] known": "x", "[1.0.0] needs a device": "x", "[1.0.0] broken": "x", "[0.4.0] worse": "why",
		},
	}
	got := judge("bridge", theirs, ours, known)
	want := verdict{plugin: "bridge", ran: 10, machine: 2, known: 1, unknown: map[string]string{"[0.4.0] worse": "why"}, stale: []string{"mended"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(verdict{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPageIsCurrent(t *testing.T) {
	t.Parallel()
	have, err := os.ReadFile("../../docs/dev/upstream-suites.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(page()), string(have)); diff != "" {
		t.Errorf("go run ./test/upstream -docs docs/dev/upstream-suites.md (-want +have):\n%s", diff)
	}
}

// A specification that ran with upstream and not with Sluice has passed with the one only, whatever it was skipped for.
func TestJudgeNotRun(t *testing.T) {
	theirs := result{ran: map[string]int{"a": 2, "b": 1}, failed: map[string]string{}}
	ours := result{ran: map[string]int{"a": 1}, failed: map[string]string{}}
	v := judge("ptp", theirs, ours, differences{})
	want := map[string]string{"a": "ran 1 times, with upstream 2", "b": "ran 0 times, with upstream 1"}
	if !maps.Equal(v.unknown, want) {
		t.Errorf("got %v, want %v", v.unknown, want)
	}
}
