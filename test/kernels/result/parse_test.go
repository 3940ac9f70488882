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
@@sluice begin pkg/nl` + "\r" + `
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
		{Package: "pkg/nl", Exit: 2, Seconds: 3, Tests: []*Test{
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

// Of several runs one after the other, the last of each package counts.
func TestParseSeveral(t *testing.T) {
	again := "\n@@sluice kernel 6.1\n@@sluice begin pkg/nl\n\x16=== RUN   TestC\n\x16--- PASS: TestC (1.00s)\n\n@@sluice end 0 1.50\n@@sluice done\n"
	got := Parse(strings.NewReader(stream + again))
	want := []*Suite{{Package: "pkg/nl", Exit: 0, Seconds: 1.5, Tests: []*Test{{Name: "TestC", Status: Pass, Seconds: 1, Output: []string{""}}}}}
	if d := cmp.Diff(want, got.Suites[2:], cmpopts.IgnoreUnexported(Suite{})); d != "" || len(got.Suites) != 3 || !got.Done || got.Release != "6.1" {
		t.Errorf("%d suites, %s\n%s", len(got.Suites), got.Release, d)
	}
}
