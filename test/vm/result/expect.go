// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Skips are the skips that are right: which test in which package is skipped on
// which kernel, and for what the kernel lacks. In its file a line is
//
//	KERNELS PACKAGE TEST FEATURE...
//
// where KERNELS is a comma-separated list; empty lines and those that start
// with # are comments. A test all of whose subtests are skipped for one feature
// stands for them.
type Skips map[SkipKey]string

// SkipKey names one test on one kernel. The value is the feature.
type SkipKey struct{ Kernel, Package, Test string }

// ReadSkips reads a file.
func ReadSkips(file string) (Skips, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := Skips{}
	for in, n := bufio.NewScanner(f), 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("%s:%d: want KERNELS PACKAGE TEST FEATURE", file, n)
		}
		for k := range strings.SplitSeq(fields[0], ",") {
			s[SkipKey{k, fields[1], fields[2]}] = strings.Join(fields[3:], " ")
		}
	}
	return s, nil
}

// skipsHead is the comment at the top of the file.
const skipsHead = `# Skips that are right: kernels, package, test, the feature that those kernels lack. Any other skip fails, and so does a
# test of this list that runs. "go run ./test/vm -update" writes it anew.
`

// Write writes a file with one line for each test and feature. order is that
// of the kernels.
func (s Skips) Write(file string, order []string) error {
	type line struct{ pkg, test, feature string }
	kernels := map[line][]string{}
	for k, feature := range s {
		l := line{k.Package, k.Test, feature}
		kernels[l] = append(kernels[l], k.Kernel)
	}
	var out []string
	for l, ks := range kernels {
		slices.SortFunc(ks, func(a, b string) int {
			return cmp.Or(cmp.Compare(slices.Index(order, a), slices.Index(order, b)), cmp.Compare(a, b))
		})
		out = append(out, fmt.Sprintf("%-16s %s %s %s\n", strings.Join(ks, ","), l.pkg, l.test, l.feature))
	}
	slices.SortFunc(out, func(a, b string) int {
		return slices.Compare(strings.Fields(a)[1:], strings.Fields(b)[1:])
	})
	return os.WriteFile(file, []byte(skipsHead+strings.Join(out, "")), 0o644)
}

// Check compares a kernel's run with what is expected of it. With all, every
// test of the packages that ran should have run; otherwise some were selected.
func (s Skips) Check(kernel string, run *Run, all bool) []string {
	var wrong []string
	for _, suite := range run.Suites {
		seen := map[string]bool{}
		for _, t := range suite.folded() {
			seen[t.Name] = true
			if w := s.judge(SkipKey{kernel, suite.Package, t.Name}, t); w != "" {
				wrong = append(wrong, w)
			}
		}
		if !all {
			continue
		}
		for k, feature := range s {
			if k.Kernel == kernel && k.Package == suite.Package && !seen[k.Test] {
				wrong = append(wrong, fmt.Sprintf("%s %s should be skipped for %s: there is no such test", k.Package, k.Test, feature))
			}
		}
	}
	slices.Sort(wrong)
	return wrong
}

func (s Skips) judge(k SkipKey, t *Test) string {
	want, expected := s[k]
	switch {
	case t.Status == Skip && t.Missing == "":
		return fmt.Sprintf("%s %s was skipped for no missing feature: %s", k.Package, k.Test, strings.TrimSpace(strings.Join(t.Output, " ")))
	case t.Status == Skip && !expected:
		return fmt.Sprintf("%s %s was skipped for %s, which is not expected here", k.Package, k.Test, t.Missing)
	case t.Status == Skip && want != t.Missing:
		return fmt.Sprintf("%s %s was skipped for %s, expected was %s", k.Package, k.Test, t.Missing, want)
	case t.Status == Pass && expected:
		return fmt.Sprintf("%s %s ran, although it should be skipped for %s", k.Package, k.Test, want)
	}
	return ""
}

// Take replaces what is expected of the packages that ran to their end by what
// was seen.
func (s Skips) Take(kernel string, run *Run, all bool) {
	for _, suite := range run.Suites {
		if suite.cut() {
			continue
		}
		for k := range s {
			if all && k.Kernel == kernel && k.Package == suite.Package {
				delete(s, k)
			}
		}
		for _, t := range suite.folded() {
			k := SkipKey{kernel, suite.Package, t.Name}
			delete(s, k)
			if t.Status == Skip && t.Missing != "" {
				s[k] = t.Missing
			}
		}
	}
}
