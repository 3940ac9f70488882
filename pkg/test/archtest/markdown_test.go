// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// labelWords is how many words a heading, a list item or a cell has to have to
// count as a sentence: "yes" and "tc ingress" are labels, and many of them would hide long sentences.
const labelWords = 4

var (
	mdFence     = regexp.MustCompile("^\\s*(```|~~~)")
	mdListItem  = regexp.MustCompile(`^\s*([-*+]|\d+[.)])\s+`)
	mdHeading   = regexp.MustCompile(`^\s*#{1,6}\s`)
	mdQuote     = regexp.MustCompile(`^\s*(>\s?)+`)
	mdRule      = regexp.MustCompile(`^\s*([-*_]\s*){3,}$`)
	mdTableRule = regexp.MustCompile(`^\s*\|?[\s:|-]+\|[\s:|-]*$`)
	mdLinkDef   = regexp.MustCompile(`^\s*\[[^\]]+\]:\s`)
	mdComment   = regexp.MustCompile(`(?s)<!--.*?-->`)
	mdImage     = regexp.MustCompile(`!\[([^\]]*)\]\([^)]*\)`)
	mdLink      = regexp.MustCompile(`\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])`)
	mdTag       = regexp.MustCompile(`</?[a-zA-Z][^>\n]*>`)
	mdSpan      = regexp.MustCompile("``[^`]*``|`[^`\n]*`")
	mdEmphasis  = regexp.MustCompile(`(\*\*|\*|~~)(\S)`)
	mdEmphEnd   = regexp.MustCompile(`(\S)(\*\*|\*|~~)`)
	sentenceEnd = regexp.MustCompile(`[.!?]["')\]]*\s+`)
	notAnEnd    = regexp.MustCompile(`(?i)(^|[\s(])(e\.g|i\.e|cf|vs|etc|approx|no|sec|fig)\.$`)
)

// codeDot stands for a dot, an exclamation or a question mark inside code, where it ends no sentence.
const codeDot = "\u00b7"

// proseSentences returns the sentences of a Markdown text. Code blocks, link
// targets, comments and rules are left out; a link counts by its text, code by
// its words. A heading, a list item, a paragraph and a table's cell each end a sentence.
func proseSentences(text string) []string {
	var sentences []string
	for _, block := range proseBlocks(text) {
		found := splitSentences(block.text)
		if block.label && len(found) == 1 && countWords(found[0]) < labelWords {
			continue
		}
		sentences = append(sentences, found...)
	}
	return sentences
}

// A proseBlock is text that no sentence leaves.
type proseBlock struct {
	text  string
	label bool // may be a label: a heading, a list item, a table's cell
}

func proseBlocks(text string) []proseBlock {
	text = mdComment.ReplaceAllString(text, "")
	var blocks []proseBlock
	var open *proseBlock
	flush := func() {
		if open != nil {
			blocks = append(blocks, *open)
			open = nil
		}
	}
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := mdFence.FindStringSubmatch(line); m != nil {
			flush()
			switch fence {
			case "":
				fence = m[1]
			case m[1]:
				fence = ""
			}
			continue
		}
		if fence != "" || mdLinkDef.MatchString(line) {
			continue
		}
		line = mdQuote.ReplaceAllString(line, "")
		switch {
		case strings.TrimSpace(line) == "", mdRule.MatchString(line), mdTableRule.MatchString(line):
			flush()
		case open == nil && strings.HasPrefix(line, "    ") && !mdListItem.MatchString(line) && !afterItem(blocks):
			// An indented code block.
		case mdHeading.MatchString(line):
			flush()
			blocks = append(blocks, proseBlock{mdHeading.ReplaceAllString(line, ""), true})
		case strings.HasPrefix(strings.TrimSpace(line), "|"):
			flush()
			for _, cell := range tableCells(line) {
				blocks = append(blocks, proseBlock{cell, true})
			}
		case mdListItem.MatchString(line):
			flush()
			open = &proseBlock{mdListItem.ReplaceAllString(line, ""), true}
		case open == nil:
			open = &proseBlock{line, false}
		default:
			open.text += "\n" + line
		}
	}
	flush()
	return blocks
}

// afterItem reports that an indented line may go on with a list item.
func afterItem(blocks []proseBlock) bool {
	return len(blocks) > 0 && blocks[len(blocks)-1].label
}

func tableCells(line string) []string {
	line = strings.ReplaceAll(strings.Trim(strings.TrimSpace(line), "|"), `\|`, codeDot)
	var cells []string
	for cell := range strings.SplitSeq(line, "|") {
		if cell = strings.TrimSpace(cell); cell != "" {
			cells = append(cells, cell)
		}
	}
	return cells
}

func splitSentences(text string) []string {
	text = mdSpan.ReplaceAllStringFunc(text, func(code string) string {
		return strings.NewReplacer(".", codeDot, "!", codeDot, "?", codeDot, "[", "", "]", "", "*", "", "<", "", ">", "").Replace(strings.Trim(code, "`"))
	})
	text = mdImage.ReplaceAllString(text, "$1")
	text = mdLink.ReplaceAllString(text, "$1")
	text = mdTag.ReplaceAllString(text, " ")
	text = mdEmphasis.ReplaceAllString(text, "$2")
	text = mdEmphEnd.ReplaceAllString(text, "$1")
	var sentences []string
	begin := 0
	keep := func(end int) {
		if s := strings.Join(strings.Fields(text[begin:end]), " "); countWords(s) > 0 {
			sentences = append(sentences, s)
		}
		begin = end
	}
	for _, m := range sentenceEnd.FindAllStringIndex(text, -1) {
		if !notAnEnd.MatchString(strings.TrimSpace(text[begin : m[0]+1])) {
			keep(m[1])
		}
	}
	keep(len(text))
	return sentences
}

// countWords counts what has a letter or a digit.
func countWords(s string) int {
	n := 0
	for word := range strings.FieldsSeq(s) {
		if strings.IndexFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) >= 0 {
			n++
		}
	}
	return n
}

func TestProseSentences(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []int // words of each sentence
	}{
		{"two sentences", "One two three. Four five.\n", []int{3, 2}},
		{"over lines", "One two\nthree four.\n\nFive six.", []int{4, 2}},
		{"a version and a file are no ends", "Linux 5.10 reads config.json again, e.g. at boot.", []int{8}},
		{"code counts its words and ends nothing", "Run `sluice nat list. Now` twice.", []int{6}},
		{"a link counts by its text", "Read [the page](https://example.org/a.b?c=d. E) now.", []int{4}},
		{"code blocks are left out", "Before it.\n```\none two. Three.\n```\nAfter it.", []int{2, 2}},
		{"indented code is left out", "Before it.\n\n    one two three\n\nAfter it.", []int{2, 2}},
		{"items end sentences", "A list:\n- one two three four\n  five\n- six seven eight nine. Ten.\n", []int{2, 5, 4, 1}},
		{"short items are labels", "- bridge\n- ptp\n- does this and that\n", []int{4}},
		{"cells are apart", "| a | b |\n|---|:--|\n| one two three four. Five | yes |\n", []int{4, 1}},
		{"headings are apart", "# The first heading here\nText here.\n## Short\n", []int{4, 2}},
		{"a question and a quote", "Is it? \"Yes.\" It is!", []int{2, 1, 2}},
		{"comments", "<!-- one two. Three -->\nFour <b>five</b> six.", []int{3}},
		{"signs are no words", "One -> two | three = four - five", []int{5}},
		{"emphasis", "**One two.** *Three* four.", []int{2, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			sentences := proseSentences(tt.text)
			for _, s := range sentences {
				got = append(got, countWords(s))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("words %v, want %v: %q", got, tt.want, sentences)
			}
		})
	}
}
