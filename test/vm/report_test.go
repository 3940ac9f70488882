// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/test/vm/result"
)

// ran is the report of a package: one test passed, or none ran.
func ran(pkg string, tests ...string) string {
	text := "@@sluice begin " + pkg + "\n"
	for _, name := range tests {
		text += "\x16=== RUN   " + name + "\n\x16--- PASS: " + name + " (0.10s)\n"
	}
	return text + "\n@@sluice end 0 1.00\n"
}

// A kernel did well only when every part was run, some test was, and nothing
// else went wrong.
func TestJudge(t *testing.T) {
	loader := ran("loader", "TestPrivilegedA")
	for _, tt := range []struct {
		name, report string
		f            finished
		want         []string
	}{
		{"all well", loader, finished{}, nil},
		{"a part is missing", loader, finished{missing: []string{"pkg/rtnl 1/2"}}, []string{"not run: pkg/rtnl 1/2"}},
		{"trouble", loader, finished{trouble: []string{"loader: BUG: bad"}}, []string{"loader: BUG: bad"}},
		{"no machine", loader, finished{errs: []error{errors.New("no QEMU")}}, []string{"no QEMU"}},
		{"nothing selected", ran("loader"), finished{}, []string{"no test was run: does -run name one?"}},
		{"nothing selected in one of two", loader + ran("pkg/rtnl"), finished{}, nil},
		{"one was cut off", loader + "@@sluice begin pkg/rtnl\n", finished{}, []string{"pkg/rtnl: 0 tests failed, exit status -1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &work{options: &options{run: "A"}}
			f := tt.f
			f.kernel, f.run = kernel{Series: "6.12"}, result.Parse(strings.NewReader(tt.report))
			if d := cmp.Diff(tt.want, w.judge(&f, result.Skips{}, result.Budgets{})); d != "" {
				t.Error(d)
			}
		})
	}
}

func matches(t *testing.T, pattern, name string) bool {
	t.Helper()
	ok, err := regexp.MatchString(pattern, name)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}
