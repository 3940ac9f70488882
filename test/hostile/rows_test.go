// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
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
	outcomes := map[testfuncs.Func]string{someFuncs[0]: passed, someFuncs[1]: passed}
	var got [][]string
	for _, r := range rows {
		got = append(got, r.judge(outcomes))
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
	outcomes := map[testfuncs.Func]string{}
	err := readEvents(strings.NewReader(`{"Action":"run","Test":"TestOne"}
{"Action":"pass","Test":"TestOne/x"}
{"Action":"skip","Test":"TestOne/y"}
{"Action":"pass","Test":"TestOne"}
{"Action":"skip","Test":"TestTwo/x"}
{"Action":"pass","Test":"TestTwo"}
{"Action":"skip","Test":"TestThree"}
not an event
{"Action":"run","Test":"TestFour"}
{"Action":"fail"}
`), "a", outcomes)
	want := map[testfuncs.Func]string{{Dir: "a", Name: "TestOne"}: passed, {Dir: "a", Name: "TestTwo"}: "skip of all its parts", {Dir: "a", Name: "TestThree"}: "skip"}
	if d := cmp.Diff(want, outcomes); d != "" || err != nil {
		t.Error(err, d)
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
		all := map[testfuncs.Func]string{}
		for _, f := range funcs {
			all[f] = passed
		}
		for _, r := range rows {
			if wrong := r.judge(all); len(wrong) > 0 {
				t.Errorf("%s: %s: %s", p.file, r.text, strings.Join(wrong, "; "))
			}
		}
	}
}
