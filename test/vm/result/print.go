// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Print writes one line on a suite, and all that its failed tests printed.
func Print(w io.Writer, s *Suite) error {
	verdict := "ok  "
	if !s.OK() {
		verdict = "FAIL"
	}
	fmt.Fprintf(w, "%s %-28s %4d passed %3d failed %3d skipped %7.1fs", verdict, s.Package, s.Count(Pass), s.Count(Fail)+s.Count(Lost), s.Count(Skip), s.Seconds)
	if f := s.Features(); len(f) > 0 {
		fmt.Fprintf(w, "  (missing: %s)", strings.Join(f, ", "))
	}
	_, err := fmt.Fprintln(w)
	if s.OK() {
		return err
	}
	return PrintFailures(w, s)
}

// PrintFailures writes what the failed tests of a suite printed.
func PrintFailures(w io.Writer, s *Suite) error {
	for _, t := range s.Tests {
		if t.Status != Fail && t.Status != Lost {
			continue
		}
		fmt.Fprintf(w, "--- %s: %s %s\n", t.Status, s.Package, t.Name)
		for _, line := range t.Output {
			fmt.Fprintf(w, "    %s\n", line)
		}
	}
	for _, line := range s.Output {
		fmt.Fprintf(w, "    %s\n", line)
	}
	_, err := fmt.Fprintf(w, "    exit status %d\n", s.Exit)
	return err
}

// PrintTests writes every test of a suite with all that it printed.
func PrintTests(w io.Writer, s *Suite) error {
	for _, t := range s.Tests {
		fmt.Fprintf(w, "--- %s: %s %s (%.2fs)\n", t.Status, s.Package, t.Name, t.Seconds)
		for _, line := range t.Output {
			fmt.Fprintf(w, "    %s\n", line)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// Features returns what the skips of a suite named, sorted. A skip that names
// nothing is listed as such.
func (s *Suite) Features() []string {
	set := map[string]bool{}
	for _, t := range s.Tests {
		switch {
		case t.Status != Skip:
		case t.Missing == "":
			set["unnamed"] = true
		default:
			set[t.Missing] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}
