// SPDX-License-Identifier: Apache-2.0

package result

import (
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

// A package that ran in parts did well only if all of them did.
func TestParseInParts(t *testing.T) {
	ran := func(exit string, tests ...string) string {
		return "\n@@sluice begin pkg/rtnl\n" + strings.Join(tests, "") + "\n@@sluice end " + exit + " 1.50\n"
	}
	test := func(name, how string) string {
		return "\x16=== RUN   " + name + "\n\x16--- " + how + ": " + name + " (1.00s)\n"
	}
	for _, tt := range []struct {
		name, stream string
		tests        []string
		exit         int
	}{
		{"all passed", ran("0", test("TestA", "PASS")) + ran("0", test("TestB", "PASS")), []string{"TestA PASS", "TestB PASS"}, 0},
		{"the first failed", ran("1", test("TestA", "FAIL")) + ran("0", test("TestB", "PASS")), []string{"TestA FAIL", "TestB PASS"}, 1},
		{"the last failed", ran("0", test("TestA", "PASS")) + ran("1", test("TestB", "FAIL")), []string{"TestA PASS", "TestB FAIL"}, 1},
		{"one left something behind, without a test", ran("1") + ran("0", test("TestB", "PASS")), []string{"TestB PASS"}, 1},
		{"the last was cut off", ran("1", test("TestA", "FAIL")) + "\n@@sluice begin pkg/rtnl\n" + test("TestB", "PASS"), []string{"TestA FAIL", "TestB PASS"}, -1},
		{"the first was cut off", "\n@@sluice begin pkg/rtnl\n" + test("TestA", "PASS") + ran("0", test("TestB", "PASS")), []string{"TestA PASS", "TestB PASS"}, -1},
		{"another package between", ran("0", test("TestA", "PASS")) + "\n@@sluice begin x\n\n@@sluice end 0 1\n" + ran("2", test("TestB", "PASS")), []string{"TestA PASS", "TestB PASS"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Parse(strings.NewReader(tt.stream)).suite("pkg/rtnl")
			var got []string
			for _, x := range s.Tests {
				got = append(got, x.Name+" "+string(x.Status))
			}
			if d := cmp.Diff(tt.tests, got); d != "" || s.Exit != tt.exit || s.OK() != (tt.exit == 0) {
				t.Errorf("exit status %d, want %d\n%s", s.Exit, tt.exit, d)
			}
		})
	}
}

// Every part of a report that has ended reads alone as it does in the whole.
func TestParts(t *testing.T) {
	ended, rest := Parts(stream)
	if len(ended) != 2 || !strings.HasPrefix(rest, "@@sluice begin cut\n") {
		t.Fatalf("%d parts, rest %q", len(ended), rest)
	}
	whole := Parse(strings.NewReader(stream))
	again := Parse(strings.NewReader(strings.Join(append(ended, rest), "")))
	if d := cmp.Diff(whole.Suites, again.Suites, cmpopts.IgnoreUnexported(Suite{})); d != "" {
		t.Error(d)
	}
	// The frame of an end that is still being written ends nothing.
	if ended, rest := Parts("@@sluice begin a\nx\n@@sluice end 0 1."); len(ended) != 0 || rest == "" {
		t.Errorf("%d parts, rest %q", len(ended), rest)
	}
}
