// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// indexEntry is a link in a table of test/README.md, and the tests named behind it.
	indexEntry = regexp.MustCompile("\\[[^\\]]+\\]\\(([^)]+)\\)((?:,? `(?:Test|Fuzz)[\\w*]+`)+)")
	indexName  = regexp.MustCompile("`([^`]+)`")
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// testsIn are the names of the tests of a file, or of all files below a folder.
func testsIn(t *testing.T, name string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(name, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(file)
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			if m[1] != "TestMain" {
				names = append(names, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return names
}

// Every file that test/README.md names exists and has the tests named behind it.
// No file of test/e2e with tests is missing there.
func TestIndexOfTests(t *testing.T) {
	root := repoRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "test/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range indexEntry.FindAllStringSubmatch(string(text), -1) {
		file := path.Join("test", m[1])
		named[file] = true
		tests := testsIn(t, filepath.Join(root, file))
		for _, pattern := range indexName.FindAllStringSubmatch(m[2], -1) {
			if !anyMatch(pattern[1], tests) {
				t.Errorf("test/README.md: %s has no test %s", file, pattern[1])
			}
		}
	}
	if len(named) < 60 {
		t.Errorf("%d files are named, which are too few: is the table still read?", len(named))
	}
	for _, file := range trackedFiles(t) {
		if strings.HasPrefix(file, "test/e2e/") && strings.HasSuffix(file, "_test.go") && !named[file] && len(testsIn(t, filepath.Join(root, file))) > 0 {
			t.Errorf("test/README.md does not name %s", file)
		}
	}
}

func anyMatch(pattern string, names []string) bool {
	for _, n := range names {
		if ok, _ := path.Match(pattern, n); ok {
			return true
		}
	}
	return false
}
