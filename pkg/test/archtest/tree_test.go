// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every package says what it is for, in one comment that starts as godoc wants.
func TestPackageDocs(t *testing.T) {
	for _, p := range listPackages(t) {
		if p.Name == "" {
			continue // only tests
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.ImportPath) + " "
			if strings.HasPrefix(p.Doc, want) || strings.HasPrefix(p.Doc, "Program "+filepath.Base(p.ImportPath)+" ") {
				continue
			}
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: package comment is %q, want it to start with %q", p.rel(), firstLine(p.Doc), want)
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

const (
	licenceGo = "SPDX-License-Identifier: Apache-2.0"
	licenceC  = "SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)"
)

// licenceOf returns the SPDX line a file must carry near its top, "" for none.
func licenceOf(file string) string {
	base := filepath.Base(file)
	switch {
	case strings.Contains(file, "testdata/"), strings.HasSuffix(base, "_bpfel.go"), strings.HasSuffix(base, "_bpfeb.go"):
		return ""
	case strings.HasSuffix(base, ".c"), strings.HasSuffix(base, ".h"):
		return licenceC
	case strings.HasSuffix(base, ".go"), strings.HasSuffix(base, ".sh"), base == "Makefile", base == "run",
		strings.HasSuffix(base, ".yml"), strings.HasSuffix(base, ".yaml"), base == "Vagrantfile", base == ".clang-format":
		return licenceGo
	}
	return ""
}

func TestSPDX(t *testing.T) {
	root := repoRoot(t)
	checked := 0
	for _, file := range trackedFiles(t) {
		want := licenceOf(file)
		if want == "" {
			continue
		}
		checked++
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		head := data[:min(len(data), 300)]
		if !bytes.Contains(head, []byte(want)) {
			t.Errorf("%s: no %q in its first lines", file, want)
		}
	}
	if checked == 0 {
		t.Error("no file was checked")
	}
}

// longFiles are allowed more than maxLines, each for its reason.
var longFiles = map[string]string{}

const maxLines = 500

// A file holds one concept; past this length it holds two.
func TestFileLength(t *testing.T) {
	root := repoRoot(t)
	for _, file := range trackedFiles(t) {
		ext := filepath.Ext(file)
		if ext != ".go" && ext != ".c" && ext != ".h" || strings.HasSuffix(file, "_bpfel.go") || longFiles[file] != "" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d", file, n, maxLines)
		}
	}
}

// A comment that asks people to keep two places the same is a missing check:
// generate one from the other, or compare them in a test.
func TestNoManualSync(t *testing.T) {
	pattern := regexp.MustCompile(`(?i)(kept?|keep|keeps)\s+(it\s+|this\s+|them\s+)?in\s+sync|must\s+match\s+the\s+(copy|one)\s+in`)
	root := repoRoot(t)
	for _, file := range trackedFiles(t) {
		switch filepath.Ext(file) {
		case ".go", ".c", ".h", ".sh":
		default:
			continue
		}
		if strings.HasPrefix(file, "pkg/test/archtest/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if m := pattern.Find(data); m != nil {
			t.Errorf("%s says %q: generate one side, or compare both in a test", file, m)
		}
	}
}

// A test that leaves itself out asks the kernel first: pkg/test/require does. Only fuzz targets and benchmarks, which an ordinary user
// runs among the unit tests, may ask for root.
func TestNoSkipThatHides(t *testing.T) {
	skip := regexp.MustCompile(`\b\w+\.Skip(f|Now)?\(.*`)
	root := repoRoot(t)
	for _, file := range trackedFiles(t) {
		if !strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "pkg/test/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range skip.FindAll(data, -1) {
			if !bytes.HasSuffix(m, []byte(`need root")`)) {
				t.Errorf("%s: %s: ask the kernel through pkg/test/require, or fail", file, m)
			}
		}
	}
}
