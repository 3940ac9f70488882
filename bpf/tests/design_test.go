// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	testName = regexp.MustCompile("`((?:Test|Fuzz)[\\w*]+)`")
	bugClass = regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| (.+) \|$`)
)

// testFuncs are the names of all tests of the repository.
func testFuncs(tb testing.TB) (names []string) {
	tb.Helper()
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		b, err := os.ReadFile(name)
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

// Every class of bugs in bpf/DESIGN.md has a test that exists, or a reason why it does not apply; so has every other test named there.
func TestBugClasses(t *testing.T) {
	b, err := os.ReadFile("../DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	all := testFuncs(t)
	for _, m := range testName.FindAllStringSubmatch(string(b), -1) {
		found := false
		for _, name := range all {
			ok, _ := path.Match(m[1], name)
			found = found || ok
		}
		if !found {
			t.Errorf("there is no test %s", m[1])
		}
	}
	const classes = 38
	rows := bugClass.FindAllStringSubmatch(string(b), -1)
	if len(rows) != classes {
		t.Errorf("%d classes, want %d", len(rows), classes)
	}
	for i, m := range rows {
		if m[1] != fmt.Sprint(i+1) {
			t.Errorf("class %s in place %d", m[1], i+1)
		}
		if !testName.MatchString(m[3]) && !strings.HasPrefix(m[3], "Not applicable: ") {
			t.Errorf("class %s (%s) names no test", m[1], m[2])
		}
	}
}
