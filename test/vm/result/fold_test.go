// SPDX-License-Identifier: Apache-2.0

package result

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFolded(t *testing.T) {
	test := func(name string, s Status, missing string) *Test {
		return &Test{Name: name, Status: s, Missing: missing}
	}
	s := &Suite{Tests: []*Test{
		test("A", Pass, ""), test("A/x", Pass, ""), test("A/x/1", Skip, "fq"), test("A/x/2", Skip, "fq"), test("A/y", Skip, "fq"),
		test("B", Pass, ""), test("B/x", Pass, ""), test("B/x/1", Skip, "fq"), test("B/y", Pass, ""),
		test("C", Pass, ""), test("C/x", Skip, "fq"), test("C/y", Skip, "tcx"),
		test("D", Fail, ""), test("D/x", Skip, "fq"),
		test("E", Skip, "tcx"), test("EE", Pass, ""),
		test("F", Pass, ""), test("F/x", Skip, ""),
	}}
	var got []string
	for _, f := range s.folded() {
		got = append(got, f.Name+" "+string(f.Status)+" "+f.Missing)
	}
	want := []string{
		"A SKIP fq", "B PASS ", "B/x SKIP fq", "B/y PASS ", "C PASS ", "C/x SKIP fq", "C/y SKIP tcx", "D FAIL ", "D/x SKIP fq",
		"E SKIP tcx", "EE PASS ", "F PASS ", "F/x SKIP ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
