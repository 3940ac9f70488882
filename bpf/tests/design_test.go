// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	cName    = regexp.MustCompile(`\b(?:sl|SL|cfg)_\w+`)
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

// wantTests fails for a name of a test in a document that is none.
func wantTests(t *testing.T, name string, all []string) (text string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range testName.FindAllStringSubmatch(string(b), -1) {
		if !slices.ContainsFunc(all, func(f string) bool { ok, _ := path.Match(m[1], f); return ok }) {
			t.Errorf("%s: there is no test %s", name, m[1])
		}
	}
	return string(b)
}

// designPages are the Markdown files below docs/dev/design.
func designPages(tb testing.TB) (pages []string) {
	tb.Helper()
	err := filepath.WalkDir("../../docs/dev/design", func(name string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return pages
}

// Every class of bugs in docs/dev/design/bug-classes.md has a test that exists, or a reason why it does not apply. Every other test that
// a page of docs/dev/design or docs/dev/testing.md names exists too.
func TestBugClasses(t *testing.T) {
	all := testFuncs(t)
	wantTests(t, "../../docs/dev/testing.md", all)
	pages := designPages(t)
	if len(pages) < 10 {
		t.Errorf("%d pages in docs/dev/design", len(pages))
	}
	for _, page := range pages {
		wantTests(t, page, all)
	}
	const classes = 42
	rows := bugClass.FindAllStringSubmatch(wantTests(t, "../../docs/dev/design/bug-classes.md", all), -1)
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

// The names of programs, maps, functions and constants that a design page has are those of the sources.
func TestDesignNames(t *testing.T) {
	known := map[string]bool{}
	for dir, exts := range map[string][]string{"..": {".c", ".h"}, "../../loader": {".go"}} {
		err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !slices.Contains(exts, filepath.Ext(name)) {
				return err
			}
			b, err := os.ReadFile(name)
			for _, word := range cName.FindAllString(string(b), -1) {
				known[word] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(known) < 100 {
		t.Fatalf("%d names in the sources", len(known))
	}
	for _, page := range designPages(t) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range cName.FindAllString(string(b), -1) {
			if !known[word] {
				t.Errorf("%s: the sources have no %s", page, word)
			}
		}
	}
}
