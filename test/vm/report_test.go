// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/test/vm/result"
	"github.com/sluice-cni/sluice/test/vm/suite"
)

// ran is the report of a package: one test passed, or none ran.
func ran(pkg string, tests ...string) string {
	text := "@@sluice begin " + pkg + "\n"
	for _, name := range tests {
		text += "\x16=== RUN   " + name + "\n\x16--- PASS: " + name + " (0.10s)\n"
	}
	return text + "\n@@sluice end 0 1.00\n"
}

// A machine did well only when every package was run, some test was, and the
// machine itself says so.
func TestJudge(t *testing.T) {
	const done = "@@sluice done\n"
	loader := ran("loader", "TestPrivilegedA")
	for _, tt := range []struct {
		name     string
		report   string
		status   int
		packages []string
		want     []string
	}{
		{"all well", loader + done, 0, []string{"loader"}, nil},
		{"one package missing", loader + done, 0, []string{"loader", "pkg/rtnl"}, []string{"not run: pkg/rtnl"}},
		{"another package was run instead", loader + ran("pkg/old", "TestPrivilegedB") + done, 0, []string{"loader", "pkg/rtnl"}, []string{"not run: pkg/rtnl"}},
		{"more was run", loader + ran("pkg/rtnl", "TestPrivilegedB") + done, 0, []string{"loader"}, nil},
		{"the machine saw a failure that its report has lost", loader + done, 1, []string{"loader"}, []string{"exit status 1, although no test in the report failed"}},
		{"nothing selected", ran("loader") + done, 0, []string{"loader"}, []string{"no test was run: does -run name one?"}},
		{"nothing selected in one of two", loader + ran("pkg/rtnl") + done, 0, []string{"loader", "pkg/rtnl"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &work{options: &options{run: "A"}}
			for _, p := range tt.packages {
				w.packages = append(w.packages, suite.Package{Path: p})
			}
			f := &finished{kernel: kernel{Series: "6.12"}, run: result.Parse(strings.NewReader(tt.report)), status: tt.status}
			if d := cmp.Diff(tt.want, w.judge(f, result.Skips{}, result.Budgets{})); d != "" {
				t.Error(d)
			}
		})
	}
}
