// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Column is one kernel of a table.
type Column struct {
	// Series is what was asked for ("5.10", "newest").
	Series string
	Run    *Run
}

// head names a column by its series and what that is at present.
func (c Column) head() string {
	release, _, _ := strings.Cut(c.Run.Release, "-cloud")
	return fmt.Sprintf("%s (%s)", c.Series, release)
}

// Tables writes what docs/dev/kernels.md shows, in Markdown: tests, instructions
// and probes by kernel, and what each kernel lacks.
func Tables(w io.Writer, columns []Column) error {
	t := &table{w: w, columns: columns}
	t.tests()
	t.lacking()
	t.reports("Instructions verified", "verified", "program", func(s string) string { return "`" + s + "`" })
	t.reports("Probes of the loader", "probe", "probe", func(s string) string { return strings.ReplaceAll(s, "_", " ") })
	return t.err
}

type table struct {
	w       io.Writer
	columns []Column
	err     error
}

func (t *table) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *table) head(first string) {
	t.printf("| %s |", first)
	for _, c := range t.columns {
		t.printf(" %s |", c.head())
	}
	t.printf("\n|---|%s\n", strings.Repeat("---|", len(t.columns)))
}

func (t *table) row(first string, cell func(Column) string) {
	t.printf("| %s |", first)
	for _, c := range t.columns {
		t.printf(" %s |", cell(c))
	}
	t.printf("\n")
}

func (t *table) tests() {
	t.printf("## Tests\n\n")
	t.head("package")
	packages := map[string]bool{}
	for _, c := range t.columns {
		for _, s := range c.Run.Suites {
			packages[s.Package] = true
		}
	}
	for _, p := range slices.Sorted(maps.Keys(packages)) {
		t.row(p, func(c Column) string { return cell(c.Run.suite(p)) })
	}
}

// cell is "12", or "12, 1 skipped", or "10, 2 FAILED", or "7, not finished" of tests that their machine's end ended.
func cell(s *Suite) string {
	if s == nil {
		return "-"
	}
	text := fmt.Sprint(s.Count(Pass))
	if n := s.Count(Skip); n > 0 {
		text += fmt.Sprintf(", %d skipped", n)
	}
	failed, cut := s.Count(Fail), s.Exit == -1
	if !cut {
		failed += s.Count(Lost)
	}
	if failed > 0 || !cut && s.Exit != 0 {
		text += fmt.Sprintf(", %d FAILED", failed)
	}
	if cut {
		text += ", not finished"
	}
	return text
}

func (t *table) lacking() {
	t.printf("\n## What the skipped tests lack\n\n")
	t.printf("| feature | kernels | tests |\n|---|---|---|\n")
	kernels, tests := map[string][]string{}, map[string]map[string]bool{}
	for _, c := range t.columns {
		for _, s := range c.Run.Suites {
			for _, test := range s.Tests {
				if test.Status != Skip {
					continue
				}
				f := test.Missing
				if !slices.Contains(kernels[f], c.Series) {
					kernels[f] = append(kernels[f], c.Series)
				}
				if tests[f] == nil {
					tests[f] = map[string]bool{}
				}
				tests[f][s.Package+" "+test.Name] = true
			}
		}
	}
	for _, f := range slices.Sorted(maps.Keys(kernels)) {
		t.printf("| %s | %s | %d |\n", f, strings.Join(kernels[f], ", "), len(tests[f]))
	}
	if len(kernels) == 0 {
		t.printf("| none | | |\n")
	}
}

// reports is a table of "report: KIND NAME VALUE" lines of the tests.
func (t *table) reports(title, kind, first string, show func(string) string) {
	t.printf("\n## %s\n\n", title)
	t.head(first)
	var names []string
	for _, c := range t.columns {
		for _, f := range c.Run.Reports(kind) {
			if !slices.Contains(names, f[0]) {
				names = append(names, f[0])
			}
		}
	}
	slices.Sort(names) // some tests report in the order of a map
	for _, n := range names {
		t.row(show(n), func(c Column) string {
			for _, f := range c.Run.Reports(kind) {
				if f[0] == n {
					return f[1]
				}
			}
			return ""
		})
	}
}

func (r *Run) suite(pkg string) *Suite {
	for _, s := range r.Suites {
		if s.Package == pkg {
			return s
		}
	}
	return nil
}

// Reports returns name and value of the lines "report: KIND NAME VALUE" that
// tests printed, in order. A name is one word.
func (r *Run) Reports(kind string) [][2]string {
	var out [][2]string
	for _, s := range r.Suites {
		for _, line := range s.reports {
			f := strings.Fields(line)
			if len(f) == 3 && f[0] == kind {
				out = append(out, [2]string{f[1], f[2]})
			}
		}
	}
	return out
}
