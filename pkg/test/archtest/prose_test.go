// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var prosePage = flag.String("prose", "", "Markdown file whose sentences TestProse counts, below the root of the module, even if docs/.vale/exclude.txt names it")

// Bounds on the sentences of a page and of all pages together.
const (
	maxMeanWords   = 17.0
	longWords      = 30 // a sentence with more words is long
	maxLongPercent = 5.0
)

// A page has short sentences: readers of all countries read it. docs/style.md
// has the rule; "make lint-prose" checks the words by the same list of pages.
func TestProse(t *testing.T) {
	pages := prosePages(t)
	if *prosePage != "" {
		pages = []string{*prosePage}
	}
	var all proseCount
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(repoRoot(t), page))
		if err != nil {
			t.Fatal(err)
		}
		sentences := proseSentences(string(text))
		c := countProse(sentences)
		all.add(c)
		t.Logf("%4d sentences, mean %4.1f words, %4.1f %% over %d: %s", c.sentences, c.mean(), c.longPercent(), longWords, page)
		if c.tooLong(1) {
			t.Errorf("%s: mean %.1f words a sentence, at most %.0f; %.1f %% over %d words, at most %.0f %%",
				page, c.mean(), maxMeanWords, c.longPercent(), longWords, maxLongPercent)
			for _, s := range sentences {
				if n := countWords(s); n > longWords {
					t.Logf("%s: %d words: %s", page, n, s)
				}
			}
		}
	}
	t.Logf("%4d sentences, mean %4.1f words, %4.1f %% over %d: all %d pages", all.sentences, all.mean(), all.longPercent(), longWords, len(pages))
	if all.tooLong(0) {
		t.Errorf("all pages: mean %.1f words a sentence, %.1f %% over %d", all.mean(), all.longPercent(), longWords)
	}
}

// docs/.vale/exclude.txt names pages that exist, each once.
func TestProseExclusions(t *testing.T) {
	excluded := proseExclusions(t)
	for i, page := range excluded {
		if _, err := os.Stat(filepath.Join(repoRoot(t), page)); err != nil {
			t.Errorf("docs/.vale/exclude.txt: %v", err)
		}
		if slices.Contains(excluded[:i], page) {
			t.Errorf("docs/.vale/exclude.txt names %s twice", page)
		}
	}
}

// prosePages returns the Markdown files that docs/.vale/exclude.txt does not name.
func prosePages(tb testing.TB) []string {
	tb.Helper()
	excluded := proseExclusions(tb)
	return slices.DeleteFunc(markdown(tb), func(file string) bool {
		return slices.Contains(excluded, file)
	})
}

func proseExclusions(tb testing.TB) []string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(repoRoot(tb), "docs/.vale/exclude.txt"))
	if err != nil {
		tb.Fatal(err)
	}
	var excluded []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			excluded = append(excluded, line)
		}
	}
	return excluded
}

type proseCount struct{ sentences, words, long int }

func countProse(sentences []string) proseCount {
	var c proseCount
	for _, s := range sentences {
		n := countWords(s)
		c.sentences++
		c.words += n
		if n > longWords {
			c.long++
		}
	}
	return c
}

func (c *proseCount) add(o proseCount) {
	c.sentences += o.sentences
	c.words += o.words
	c.long += o.long
}

func (c proseCount) mean() float64 { return float64(c.words) / float64(max(c.sentences, 1)) }

func (c proseCount) longPercent() float64 {
	return 100 * float64(c.long) / float64(max(c.sentences, 1))
}

// tooLong reports that the bounds do not hold. A short page may have as many
// long sentences as spare says, whatever their share.
func (c proseCount) tooLong(spare int) bool {
	return c.mean() > maxMeanWords || c.longPercent() > maxLongPercent && c.long > spare
}
