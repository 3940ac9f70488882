// SPDX-License-Identifier: Apache-2.0

package result

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const skipsText = `# comment

5.10,6.1 loader TestA/two qdisc fq
6.1 loader TestGone tcx
5.10 pkg/rtnl TestC link vrf
`

func writeSkips(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "skips.txt")
	if err := os.WriteFile(file, []byte(skipsText), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSkips(t *testing.T) {
	skips, err := ReadSkips(writeSkips(t))
	if err != nil {
		t.Fatal(err)
	}
	run := Parse(strings.NewReader(stream))
	tests := []struct {
		kernel string
		all    bool
		want   []string
	}{
		{"5.10", true, []string{"loader TestB was skipped for no missing feature: b_test.go:1: another reason"}},
		{"6.1", false, []string{"loader TestB was skipped for no missing feature: b_test.go:1: another reason"}},
		{"6.1", true, []string{
			"loader TestB was skipped for no missing feature: b_test.go:1: another reason",
			"loader TestGone should be skipped for tcx: there is no such test",
		}},
		{"6.12", true, []string{
			"loader TestA/two was skipped for qdisc fq, which is not expected here",
			"loader TestB was skipped for no missing feature: b_test.go:1: another reason",
		}},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, skips.Check(tt.kernel, run, tt.all)); d != "" {
			t.Errorf("%s, all %v:\n%s", tt.kernel, tt.all, d)
		}
	}
	skips[SkipKey{"5.10", "loader", "TestA/one"}] = "tcx"
	skips[SkipKey{"5.10", "loader", "TestA/two"}] = "link vrf"
	want := []string{
		"loader TestA/one ran, although it should be skipped for tcx",
		"loader TestA/two was skipped for qdisc fq, expected was link vrf",
	}
	if d := cmp.Diff(want, skips.Check("5.10", run, true)[:2]); d != "" {
		t.Error(d)
	}
}

// Taking what is seen leaves alone what did not run, and is then expected.
func TestTakeSkips(t *testing.T) {
	file := writeSkips(t)
	skips, err := ReadSkips(file)
	if err != nil {
		t.Fatal(err)
	}
	run := Parse(strings.NewReader(stream))
	run.Suites = run.Suites[:1]
	skips.Take("6.1", run, true)
	skips.Take("6.12", run, true)
	if err := skips.Write(file, []string{"5.10", "6.1", "6.12"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := skipsHead + "5.10,6.1,6.12    loader TestA/two qdisc fq\n5.10             pkg/rtnl TestC link vrf\n"
	if d := cmp.Diff(want, string(raw)); d != "" {
		t.Error(d)
	}
}

func TestBadSkips(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips.txt")
	if err := os.WriteFile(file, []byte("5.10 loader TestA\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSkips(file); err == nil {
		t.Error("a line without feature was accepted")
	}
}

func TestBudgets(t *testing.T) {
	run := Parse(strings.NewReader("@@sluice begin bpf/tests\n\x16=== RUN   TestP\n  x.go:1: report: verified sl_a 100\n  x.go:1: report: verified sl_b 50\n"))
	b := Budgets{"5.10": {"sl_a": 99}}
	want := []string{
		"program sl_a: 100 instructions verified, allowed are 99",
		"program sl_b has no instruction budget for this kernel; it takes 50",
	}
	if d := cmp.Diff(want, b.Check("5.10", run)); d != "" {
		t.Error(d)
	}
	b.Take("5.10", run)
	if d := cmp.Diff(Budgets{"5.10": {"sl_a": 125, "sl_b": 62}}, b); d != "" || b.Check("5.10", run) != nil {
		t.Error(d, b.Check("5.10", run))
	}
	if got := b.Check("6.1", run); len(got) != 2 {
		t.Errorf("a kernel without budgets: %v", got)
	}
}

func TestTables(t *testing.T) {
	run := Parse(strings.NewReader(stream))
	var b strings.Builder
	if err := Tables(&b, []Column{{"5.10", run}, {"newest", &Run{Release: "7.2.13+deb14-cloud-amd64"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| package | 5.10 (5.10.0-32) | newest (7.2.13+deb14) |", "| loader | 2, 2 skipped | - |", "| pkg/rtnl | 0, 2 FAILED | - |",
		"| cut | 0, not finished | - |",
		"| qdisc fq | 5.10 | 1 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
}
