// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const decisions = "docs/adr"

// decisionParts are what every decision record has, in this order.
var decisionParts = []string{"## Context", "## Options", "## Measurement", "## Decision", "## Consequences"}

// Every decision has a file of its own with the same parts, and a line in the index.
func TestDecisionRecords(t *testing.T) {
	root := repoRoot(t)
	index := readText(t, decisions+"/README.md")
	names, err := filepath.Glob(filepath.Join(root, decisions, "[0-9]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("no decision record")
	}
	fileName := regexp.MustCompile(`^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	numbers := map[string]string{}
	for _, name := range names {
		base := filepath.Base(name)
		m := fileName.FindStringSubmatch(base)
		if m == nil {
			t.Errorf("%s: want NNNN-words-with-hyphens.md", base)
			continue
		}
		if other := numbers[m[1]]; other != "" {
			t.Errorf("%s and %s have one number", other, base)
		}
		numbers[m[1]] = base
		if strings.Count(index, "("+base+")") != 1 {
			t.Errorf("%s: want one link to it in %s/README.md", base, decisions)
		}
		checkDecision(t, base, strings.TrimLeft(m[1], "0"))
	}
}

func checkDecision(t *testing.T, base, number string) {
	t.Helper()
	text := readText(t, path.Join(decisions, base))
	if !strings.HasPrefix(text, "# "+number+". ") {
		t.Errorf("%s begins with %q, want %q", base, firstLine(text), "# "+number+". Title")
	}
	if !regexp.MustCompile(`(?m)^Status: (proposed|accepted|rejected|superseded by \[)`).MatchString(text) {
		t.Errorf("%s: no line \"Status: accepted, YYYY-MM-DD\"", base)
	}
	at := 0
	for _, part := range decisionParts {
		i := strings.Index(text[at:], "\n"+part+"\n")
		if i < 0 {
			t.Errorf("%s: no %q after the part before it", base, part)
			continue
		}
		at += i + len(part)
	}
}

// maxPageLines are the longest pages by folder: docs/style.md has the rule.
var maxPageLines = map[string]int{"README.md": 120, "bench/README.md": 100, "docs/design": 250, "bench/results": 250}

// A page that has to stay short does.
func TestPageLength(t *testing.T) {
	pages := 0
	for _, page := range markdown(t) {
		for dir, most := range maxPageLines {
			if page != dir && !strings.HasPrefix(page, dir+"/") {
				continue
			}
			pages++
			if lines := strings.Count(readText(t, page), "\n"); lines > most {
				t.Errorf("%s has %d lines, at most %d", page, lines, most)
			}
		}
	}
	if pages < len(maxPageLines) {
		t.Errorf("%d pages", pages)
	}
}

// A test that a page names exists: `TestX`, or `TestX*` for every test that begins so. The changelog tells history.
func TestCitedTests(t *testing.T) {
	cited := regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)(\\*?)`")
	tests := testNames(t)
	for _, page := range markdown(t) {
		if page == "CHANGELOG.md" {
			continue
		}
		for _, m := range cited.FindAllStringSubmatch(readText(t, page), -1) {
			if !slices.ContainsFunc(tests, func(name string) bool { return name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1]) }) {
				t.Errorf("%s names %s%s: there is no such test", page, m[1], m[2])
			}
		}
	}
}

func testNames(tb testing.TB) []string {
	tb.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	var names []string
	for _, file := range trackedFiles(tb) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(readText(tb, file), -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

func markdown(tb testing.TB) []string {
	tb.Helper()
	return slices.DeleteFunc(trackedFiles(tb), func(file string) bool {
		return filepath.Ext(file) != ".md" || strings.Contains(file, "testdata/")
	})
}

// readText reads a file below the root of the module.
func readText(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(repoRoot(tb), name))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// The dev container has every package that the Makefile installs.
func TestDevContainer(t *testing.T) {
	image := readText(t, ".devcontainer/Dockerfile")
	pairs := regexp.MustCompile(`[a-z][a-z0-9-]*:([a-z][a-z0-9.+-]*[a-z0-9])(?:[\s)]|$)`)
	packages := 0
	for line := range strings.Lines(strings.ReplaceAll(readText(t, "Makefile"), "$(CLANG)", "clang-14")) {
		if !strings.Contains(line, "_NEEDS :=") && !strings.Contains(line, "$(call need,") {
			continue
		}
		for _, m := range pairs.FindAllStringSubmatch(line, -1) {
			packages++
			if !regexp.MustCompile(`(?m)[\s]` + regexp.QuoteMeta(m[1]) + `(\s|$)`).MatchString(image) {
				t.Errorf("the Makefile installs %s, .devcontainer/Dockerfile does not", m[1])
			}
		}
	}
	if packages < 20 {
		t.Errorf("%d packages in the Makefile", packages)
	}
}

// A semicolon ends a statement in a mermaid diagram, also inside a message or a note.
func TestDiagrams(t *testing.T) {
	diagram := regexp.MustCompile("(?ms)^```mermaid\n(.*?)^```$")
	entity := regexp.MustCompile(`[&#]\w+;`)
	for _, page := range markdown(t) {
		for _, m := range diagram.FindAllStringSubmatch(readText(t, page), -1) {
			for line := range strings.Lines(m[1]) {
				if strings.Contains(strings.TrimRight(entity.ReplaceAllString(line, ""), "; \n"), ";") {
					t.Errorf("%s: %q: a semicolon breaks the diagram", page, strings.TrimSpace(line))
				}
			}
		}
	}
}
