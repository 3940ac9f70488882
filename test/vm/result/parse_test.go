// SPDX-License-Identifier: Apache-2.0

package result

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const stream = `noise of the console
@@sluice kernel 5.10.0-32-cloud-amd64
@@sluice begin loader
` + "\x16" + `=== RUN   TestA
` + "\x16" + `=== RUN   TestA/one
    a_test.go:3: before
` + "\x16" + `--- PASS: TestA/one (0.50s)
` + "\x16" + `=== RUN   TestA/two
    a_test.go:9: missing feature: qdisc fq
` + "\x16" + `--- SKIP: TestA/two (0.00s)
` + "\x16" + `=== NAME  TestA
` + "\x16" + `--- PASS: TestA (0.60s)
` + "\x16" + `=== RUN   TestB
    b_test.go:1: another reason
` + "\x16" + `--- SKIP: TestB (0.00s)
` + "\x16" + `=== NAME  ` + `
PASS

@@sluice end 0 1.25
@@sluice begin pkg/rtnl` + "\r" + `
` + "\x16" + `=== RUN   TestC
` + "\x16" + `--- FAIL: TestC (2.00s)
` + "\x16" + `=== RUN   TestD
panic: boom

@@sluice end 2 3.00
@@sluice begin cut
` + "\x16" + `=== RUN   TestE
`

func TestParse(t *testing.T) {
	want := &Run{Release: "5.10.0-32-cloud-amd64", Suites: []*Suite{
		{Package: "loader", Exit: 0, Seconds: 1.25, Tests: []*Test{
			{Name: "TestA", Status: Pass, Seconds: 0.6},
			{Name: "TestA/one", Status: Pass, Seconds: 0.5, Output: []string{"    a_test.go:3: before"}},
			{Name: "TestA/two", Status: Skip, Missing: "qdisc fq", Output: []string{"    a_test.go:9: missing feature: qdisc fq"}},
			{Name: "TestB", Status: Skip, Output: []string{"    b_test.go:1: another reason"}},
		}},
		{Package: "pkg/rtnl", Exit: 2, Seconds: 3, Tests: []*Test{
			{Name: "TestC", Status: Fail, Seconds: 2},
			{Name: "TestD", Status: Lost, Output: []string{"panic: boom", ""}},
		}},
		{Package: "cut", Exit: -1, Tests: []*Test{{Name: "TestE", Status: Lost, Output: []string{""}}}},
	}}
	got := Parse(strings.NewReader(stream))
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Suite{})); d != "" {
		t.Error(d)
	}
	for i, ok := range []bool{true, false, false} {
		if got.Suites[i].OK() != ok {
			t.Errorf("%s: OK is %v", got.Suites[i].Package, !ok)
		}
	}
}

// What a test prints without an end of line stands before what package testing says next.
func TestParseUnendedLines(t *testing.T) {
	s := NewSuite("pkg/rtnl")
	for line := range strings.Lines("\x16=== RUN   TestA\nhalf\x16=== RUN   TestA/sub\nx\x16--- PASS: TestA/sub (0.10s)\n" +
		"\x16=== NAME  TestA\nmissing feature: tcx\x16--- SKIP: TestA (0.20s)\n") {
		s.Line(strings.TrimSuffix(line, "\n"))
	}
	want := []*Test{
		{Name: "TestA", Status: Skip, Seconds: 0.2, Missing: "tcx", Output: []string{"half", "missing feature: tcx"}},
		{Name: "TestA/sub", Status: Pass, Seconds: 0.1, Output: []string{"x"}},
	}
	if d := cmp.Diff(want, s.Tests); d != "" {
		t.Error(d)
	}
}

// Of several runs one after the other, the last of each test counts.
func TestParseSeveral(t *testing.T) {
	ran := func(exit string, tests ...string) string {
		return "\n@@sluice kernel 6.1\n@@sluice begin pkg/rtnl\n" + strings.Join(tests, "") + "\n@@sluice end " + exit + " 1.50\n@@sluice done\n"
	}
	test := func(name, how string) string {
		return "\x16=== RUN   " + name + "\n\x16--- " + how + ": " + name + " (1.00s)\n"
	}
	for _, tt := range []struct {
		name, more string
		tests      []string
		exit       int
	}{
		{"one test anew", ran("0", test("TestC", "PASS")), []string{"TestD LOST", "TestC PASS"}, 2},
		{"all anew", ran("0", test("TestC", "PASS"), test("TestD", "PASS")), []string{"TestC PASS", "TestD PASS"}, 0},
		{"one after the other", ran("0", test("TestC", "PASS")) + ran("0", test("TestD/a", "PASS"), test("TestD", "PASS")), []string{"TestC PASS", "TestD/a PASS", "TestD PASS"}, 0},
		{"subtests go with theirs", ran("1", test("TestD/b", "FAIL"), test("TestD", "FAIL")) + ran("0", test("TestD", "PASS")), []string{"TestC FAIL", "TestD PASS"}, 1},
		{"failed again", ran("1", test("TestC", "FAIL"), test("TestD", "PASS")), []string{"TestC FAIL", "TestD PASS"}, 1},
		{"cut off", "\n@@sluice begin pkg/rtnl\n" + test("TestC", "PASS"), []string{"TestD LOST", "TestC PASS"}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := Parse(strings.NewReader(stream + tt.more))
			i := slices.IndexFunc(run.Suites, func(s *Suite) bool { return s.Package == "pkg/rtnl" })
			var got []string
			for _, x := range run.Suites[i].Tests {
				got = append(got, x.Name+" "+string(x.Status))
			}
			if d := cmp.Diff(tt.tests, got); d != "" || run.Suites[i].Exit != tt.exit || len(run.Suites) != 3 {
				t.Errorf("%d suites, exit status %d, want %d\n%s", len(run.Suites), run.Suites[i].Exit, tt.exit, d)
			}
		})
	}
	// Nor does one test anew make good an exit status that no test explains.
	leaks := ran("1", test("TestA", "PASS"), test("TestB", "PASS"), "\x16=== NAME  \nleft behind: a device\n")
	leaked := Parse(strings.NewReader(leaks + ran("0", test("TestA", "PASS")))).suite("pkg/rtnl")
	if leaked.Exit != 1 || leaked.OK() || !slices.Contains(leaked.Output, "left behind: a device") {
		t.Errorf("a leak was forgotten: %+v", leaked)
	}
	// What was never begun cannot be made good.
	for end, exit := range map[string]int{"": -1, "\n@@sluice end 137 1\n": 137} {
		cut := Parse(strings.NewReader(stream + end + "\n@@sluice begin cut\n" + test("TestF", "PASS") + "\n@@sluice end 0 1\n"))
		if s := cut.suite("cut"); s.Exit != exit || s.OK() {
			t.Errorf("a run that was cut off counts as ended: %+v", s)
		}
	}
}
