// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"os"
	"path/filepath"
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

const maxLines = 500

// A file holds one concept; past this length it holds two.
func TestFileLength(t *testing.T) {
	root := repoRoot(t)
	for _, file := range trackedFiles(t) {
		ext := filepath.Ext(file)
		if ext != ".go" && ext != ".c" && ext != ".h" || strings.HasSuffix(file, "_bpfel.go") {
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
