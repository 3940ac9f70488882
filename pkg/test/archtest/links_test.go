// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// Parts of a Markdown text.
var (
	mdFence   = regexp.MustCompile("^\\s*(```|~~~)")
	mdHeading = regexp.MustCompile(`^\s*#{1,6}\s`)
	mdComment = regexp.MustCompile(`(?s)<!--.*?-->`)
	mdLink    = regexp.MustCompile(`\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])`)
	mdSpan    = regexp.MustCompile("``[^`]*``|`[^`\n]*`")
)

var mdTarget = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)`)

// Every relative link of a page leads to a file or folder of the repository,
// and to a heading that it has.
func TestLinks(t *testing.T) {
	root := repoRoot(t)
	links := 0
	for _, page := range markdown(t) {
		for _, link := range pageLinks(readText(t, page)) {
			links++
			if why := deadLink(root, page, link); why != "" {
				t.Errorf("%s: %s: %s", page, link, why)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links", links)
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

// deadLink says why a page's link leads nowhere; nothing if it does not, or leads outside of the repository.
func deadLink(root, page, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	if strings.HasPrefix(u.Path, "/") {
		return "is not relative"
	}
	target := filepath.Join(root, page)
	if u.Path != "" {
		target = filepath.Join(root, filepath.Dir(page), u.Path)
	}
	if rel, err := filepath.Rel(root, target); err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "leads outside of the repository"
	}
	if _, err := os.Stat(target); err != nil {
		return "no such file"
	}
	if u.Fragment == "" || filepath.Ext(target) != ".md" {
		return ""
	}
	text, err := os.ReadFile(target)
	if err != nil {
		return err.Error()
	}
	if !slices.Contains(pageAnchors(string(text)), u.Fragment) {
		return "no such heading"
	}
	return ""
}

// pageLinks returns the targets of a page's links and images, without those in code.
func pageLinks(text string) []string {
	var links []string
	for _, line := range linesOutsideCode(text) {
		for _, m := range mdTarget.FindAllStringSubmatch(mdSpan.ReplaceAllString(line, "code"), -1) {
			links = append(links, m[1])
		}
	}
	return links
}

// pageAnchors returns the names that GitHub gives to a page's headings.
func pageAnchors(text string) []string {
	var anchors []string
	count := map[string]int{}
	for _, line := range linesOutsideCode(text) {
		if !mdHeading.MatchString(line) {
			continue
		}
		name := headingAnchor(mdHeading.ReplaceAllString(line, ""))
		n := count[name]
		count[name]++
		if n > 0 {
			name += "-" + strconv.Itoa(n)
		}
		anchors = append(anchors, name)
	}
	return anchors
}

func headingAnchor(heading string) string {
	heading = mdLink.ReplaceAllString(strings.TrimSpace(heading), "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func linesOutsideCode(text string) []string {
	var lines []string
	fence := ""
	for line := range strings.Lines(mdComment.ReplaceAllString(text, "")) {
		line = strings.TrimRight(line, "\r\n")
		if m := mdFence.FindStringSubmatch(line); m != nil {
			switch fence {
			case "":
				fence = m[1]
			case m[1]:
				fence = ""
			}
			continue
		}
		if fence == "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestPageLinks(t *testing.T) {
	text := "# Two words, `and_code`\n[a](b.md) ![i](c.png \"title\")\n```\n[no](code.md)\n```\n`[no](span.md)` [d](<e.md#f>)\n## Same\n## Same\n"
	if got, want := pageLinks(text), []string{"b.md", "c.png", "e.md#f"}; !slices.Equal(got, want) {
		t.Errorf("links %q, want %q", got, want)
	}
	if got, want := pageAnchors(text), []string{"two-words-and_code", "same", "same-1"}; !slices.Equal(got, want) {
		t.Errorf("anchors %q, want %q", got, want)
	}
}

func TestDeadLink(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "docs/a.md"), []byte("# The heading\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		"https://example.org/none": "",
		"a.md":                     "",
		"../docs":                  "",
		"#the-heading":             "",
		"a.md#the-heading":         "",
		"a.md#another":             "no such heading",
		"b.md":                     "no such file",
		"/docs/a.md":               "is not relative",
		"../../a.md":               "leads outside of the repository",
	} {
		if got := deadLink(root, "docs/a.md", link); got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}
