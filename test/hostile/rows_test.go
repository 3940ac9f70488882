// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

var someFuncs = []testfuncs.Func{{Dir: "a", Name: "TestOne"}, {Dir: "a", Name: "TestTwo"}, {Dir: "b", Name: "TestTwo"}}

func TestRows(t *testing.T) {
	p := page{file: "x.md", after: "## Table", text: 0, tests: 1, kind: "promise"}
	rows, err := p.rows("# X\n\n## Table\n\nWords.\n\n| what | tests |\n|---|---|\n| one | `TestOne` |\n| two | a word, `TestTw*`, `TestGone` |\n"+
		"| nothing | none |\n| excused | Not applicable: so it is |\n\n## Next\n\n| not | `TestOne` |\n", someFuncs)
	if err != nil || len(rows) != 4 {
		t.Fatal(rows, err)
	}
	outcomes := map[testfuncs.Func]outcome{someFuncs[0]: {result: passed}, someFuncs[1]: {result: passed}}
	var got [][]string
	for _, r := range rows {
		wrong, needs, _ := r.judge(outcomes)
		got = append(got, append(wrong, needs...))
	}
	want := [][]string{nil, {"TestGone: there is no such test", "b TestTwo: did not run"}, {"it names no test"}, nil}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for name, text := range map[string]string{"no heading": "# X\n", "no table": "## Table\n\nx\n", "short rows": "## Table\n\n| a | b |\n|---|---|\n| x |\n| y |\n"} {
		if _, err := p.rows(text, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Only a test that ran and passed counts.
func TestReadEvents(t *testing.T) {
	outcomes := map[testfuncs.Func]outcome{}
	err := readEvents(strings.NewReader(`{"Action":"run","Test":"TestOne"}
{"Action":"pass","Test":"TestOne/x"}
{"Action":"skip","Test":"TestOne/y"}
{"Action":"pass","Test":"TestOne"}
{"Action":"skip","Test":"TestTwo/x"}
{"Action":"pass","Test":"TestTwo"}
{"Action":"output","Test":"TestThree","Output":"    x_test.go:1: missing feature: link wireguard\n"}
{"Action":"skip","Test":"TestThree"}
{"Action":"output","Test":"TestFive","Output":"    x_test.go:1: left to: make runtimes\n"}
{"Action":"skip","Test":"TestFive"}
not an event
{"Action":"run","Test":"TestFour"}
{"Action":"fail"}
`), "a", outcomes)
	want := map[testfuncs.Func]outcome{
		{Dir: "a", Name: "TestOne"}: {result: passed}, {Dir: "a", Name: "TestTwo"}: {result: "skip of all its parts"},
		{Dir: "a", Name: "TestThree"}: {result: "skip", needs: []string{"link wireguard"}},
		{Dir: "a", Name: "TestFive"}:  {result: "skip", left: "make runtimes"},
	}
	if d := cmp.Diff(want, outcomes, cmp.AllowUnexported(outcome{})); d != "" || err != nil {
		t.Error(err, d)
	}
}

// What a test needs is said, whatever else holds, until it ran under a kernel that has it. A test that fails there fails.
func TestNeeds(t *testing.T) {
	one, two := someFuncs[0], someFuncs[1]
	r := row{kind: "promise", text: "x", funcs: []testfuncs.Func{one, two}}
	outcomes := map[testfuncs.Func]outcome{one: {result: passed}, two: {result: "skip", needs: []string{"link wireguard"}}}
	said := func() []string {
		wrong, needs, left := r.judge(outcomes)
		return slices.Concat(wrong, needs, left)
	}
	for _, tt := range []struct {
		guest, want string
	}{
		{"", "a TestTwo: needs kernel feature link wireguard"},
		{"--- SKIP: a TestTwo (0.1s)", "a TestTwo: needs kernel feature link wireguard"},
		{"--- PASS: a TestTwo/part (0.1s)", "a TestTwo: needs kernel feature link wireguard"},
		{"--- PASS: a TestTwo (0.1s)\n--- SKIP: a TestTwo/part (0.1s)", "a TestTwo: needs kernel feature link wireguard"},
		{"--- PASS: b TestTwo (0.1s)", "a TestTwo: needs kernel feature link wireguard"},
		{"--- FAIL: a 2/3 TestTwo (0.1s)", "a TestTwo: fail under Linux 6.12"},
		{"--- PASS: a 2/3 TestTwo (0.1s)", "a TestTwo: fail under Linux 6.12"}, // only what needs something is read
	} {
		readGuest(tt.guest+"\n", "6.12", outcomes)
		if got := said(); len(got) != 1 || got[0] != tt.want {
			t.Errorf("after %q: %q, want %q", tt.guest, got, tt.want)
		}
	}
	outcomes[two] = outcome{result: "skip", needs: []string{"link wireguard"}}
	if readGuest("--- PASS: a TestTwo (0.1s)\n--- FAIL: a TestOne (0.1s)\n", "6.12", outcomes); len(said()) != 0 {
		t.Errorf("after both: %q", said())
	}
}

// A test that is left to a target of its own is named. A row needs another one to hold.
func TestLeft(t *testing.T) {
	one, two := someFuncs[0], someFuncs[1]
	outcomes := map[testfuncs.Func]outcome{one: {result: passed}, two: {result: "skip", left: "make runtimes"}}
	both, alone := row{funcs: []testfuncs.Func{one, two}}, row{funcs: []testfuncs.Func{two}}
	if wrong, needs, left := both.judge(outcomes); len(wrong)+len(needs) > 0 || len(left) != 1 || left[0] != "a TestTwo: left to make runtimes" {
		t.Errorf("beside another test: wrong %q, needs %q, left %q", wrong, needs, left)
	}
	if wrong, _, _ := alone.judge(outcomes); len(wrong) != 1 {
		t.Errorf("alone: %q", wrong)
	}
}

// Every promise and every class names tests, and they exist.
func TestPages(t *testing.T) {
	t.Chdir("../..")
	funcs, err := testfuncs.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	least := map[string]int{"promise": 20, "bug class": 38}
	for _, p := range pages {
		text, err := os.ReadFile(p.file)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := p.rows(string(text), funcs)
		if err != nil || len(rows) < least[p.kind] {
			t.Errorf("%s: %d rows, %v", p.file, len(rows), err)
		}
		all := map[testfuncs.Func]outcome{}
		for _, f := range funcs {
			all[f] = outcome{result: passed}
		}
		for _, r := range rows {
			if wrong, _, _ := r.judge(all); len(wrong) > 0 {
				t.Errorf("%s: %s: %s", p.file, r.text, strings.Join(wrong, "; "))
			}
		}
	}
}
