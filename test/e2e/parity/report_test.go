// SPDX-License-Identifier: Apache-2.0

package parity

import (
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/parity.json and docs/dev/parity.md as found")

const (
	parityFile = "testdata/parity.json"
	parityDoc  = "../../../docs/dev/parity.md"
)

// parityJSON has the outcomes on file, by behaviour and column.
//
//go:embed testdata/parity.json
var parityJSON []byte

func recordedOutcomes(t testing.TB) map[string]map[string]string {
	t.Helper()
	on := map[string]map[string]string{}
	if err := json.Unmarshal(parityJSON, &on); err != nil {
		t.Fatal(err)
	}
	return on
}

// rows are the names of all behaviours in the order of the scenes.
func rows() (out []string) {
	for _, sc := range cases() {
		for _, b := range slices.Concat(sc.atOnce, sc.then) {
			for _, fam := range b.families() {
				out = append(out, rowName(sc.group, b, fam))
			}
		}
	}
	return out
}

// difference is a deliberate one.
type difference struct {
	// rows and columns are patterns of path.Match, "" for every column.
	rows, columns string
	// ours is the outcome, "" for whichever.
	ours   string
	reason string
}

func (d difference) matches(row, column, outcome string) bool {
	inRow, _ := path.Match(d.rows, row)
	inColumn, _ := path.Match(d.columns, column)
	return inRow && (d.columns == "" || inColumn) && (d.ours == "" || d.ours == outcome)
}

// excuse returns the index of the difference that allows a cell, or -1.
func excuse(row, column, outcome string) int {
	return slices.IndexFunc(differences, func(d difference) bool { return d.matches(row, column, outcome) })
}

// judge compares what was seen with upstream and with the file.
func judge(t *testing.T, r *results) {
	t.Helper()
	onFile := recordedOutcomes(t)
	for _, row := range rows() {
		seen := r.cells[row]
		if *update {
			continue
		}
		for column, outcome := range seen {
			if want := onFile[row][column]; outcome != want {
				t.Errorf("%s\n  %s: %s\n  on file: %s", row, column, outcome, want)
			}
		}
		if want, ok := onFile[row][reference]; ok && seen[reference] == "" {
			r.put(row, reference, want)
		}
	}
	for _, text := range unexcused(r.cells) {
		t.Error(text)
	}
	t.Log("\n" + matrix(r.cells))
	if *update {
		writeOutcomes(t, onFile, r)
	}
}

// unexcused lists the cells of ours that differ from upstream's for no
// reason that is listed.
func unexcused(cells map[string]map[string]string) (out []string) {
	for _, row := range rows() {
		for _, c := range ourColumns() {
			outcome, ok := cells[row][c.name]
			if want := cells[row][reference]; ok && outcome != want && excuse(row, c.name, outcome) < 0 {
				out = append(out, fmt.Sprintf("%s\n  %s: %s\n  reference: %s", row, c.name, outcome, want))
			}
		}
	}
	return out
}

// writeOutcomes puts what was seen on file; a column that did not run keeps what it has.
func writeOutcomes(t *testing.T, onFile map[string]map[string]string, r *results) {
	t.Helper()
	// Read anew: a run of other scenes may have written since this one was built.
	if b, err := os.ReadFile(parityFile); err == nil {
		if err := json.Unmarshal(b, &onFile); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]map[string]string{}
	for _, row := range rows() {
		out[row] = map[string]string{}
		for _, cells := range []map[string]string{onFile[row], r.cells[row]} {
			for column, outcome := range cells {
				out[row][column] = outcome
			}
		}
	}
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{parityFile: string(b) + "\n", parityDoc: document(out)} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParityOnFile keeps file, document, scenes and differences together.
func TestParityOnFile(t *testing.T) {
	onFile := recordedOutcomes(t)
	if *update {
		if err := os.WriteFile(parityDoc, []byte(document(onFile)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	doc, err := os.ReadFile(parityDoc)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(document(onFile), string(doc)); d != "" {
		t.Errorf("docs/dev/parity.md is not what the outcomes on file give; go test -run TestPrivilegedParity ./test/e2e/parity -update (-want +got):\n%s", d)
	}
	for _, text := range unexcused(onFile) {
		t.Error(text)
	}
	want := rows()
	if len(slices.Compact(slices.Sorted(slices.Values(want)))) != len(want) {
		t.Error("two behaviours have one name")
	}
	for row := range onFile {
		if !slices.Contains(want, row) {
			t.Errorf("on file, and no behaviour any more: %s", row)
		}
	}
	used := make([]bool, len(differences))
	for _, row := range want {
		for _, c := range ourColumns() {
			if got := onFile[row][c.name]; got == "" {
				t.Errorf("not on file: %s, %s", row, c.name)
			} else if got != onFile[row][reference] {
				if i := excuse(row, c.name, got); i >= 0 {
					used[i] = true
				}
			}
		}
	}
	for i, ok := range used {
		if !ok {
			t.Errorf("a difference that does not exist: %+v", differences[i])
		}
	}
}

// matrix is the table for the terminal: a letter for each cell.
func matrix(cells map[string]map[string]string) string {
	var b strings.Builder
	b.WriteString("= as upstream, d deliberately different, X different, . did not run\n")
	for _, row := range rows() {
		for _, c := range ourColumns() {
			b.WriteString(mark(row, c.name, cells[row]))
		}
		fmt.Fprintf(&b, "  %s: %s\n", row, cells[row][reference])
	}
	return b.String()
}

func mark(row, column string, cells map[string]string) string {
	outcome, ok := cells[column]
	switch {
	case !ok:
		return "."
	case outcome == cells[reference]:
		return "="
	case excuse(row, column, outcome) >= 0:
		return "d"
	}
	return "X"
}

const documentHead = `# What users see, backend by backend

Each line is a behaviour, observed by real sockets on a node whose pods were attached by the real
plugins.

| column or cell | meaning |
|---|---|
| upstream | containernetworking/plugins v1.9.1 with iptables |
| upstream, nft | the same with nftables for hostPorts and masquerading |
| = | as in the column "upstream" |
| a number | a deliberate difference, explained [below](#deliberate-differences) |

` + "`go test -run TestPrivilegedParity ./test/e2e/parity -update`" + ` writes this page.
The same test fails when a cell changes.

`

// document is docs/dev/parity.md.
func document(cells map[string]map[string]string) string {
	var b strings.Builder
	b.WriteString(documentHead)
	reasons := reasons()
	group := ""
	for _, row := range rows() {
		g, name, _ := strings.Cut(row, ": ")
		if g != group {
			group = g
			fmt.Fprintf(&b, "## %s\n\n| | upstream | upstream, nft |", g)
			for _, c := range ourColumns() {
				fmt.Fprintf(&b, " %s |", c.name)
			}
			b.WriteString("\n|---" + strings.Repeat("|---", len(ourColumns())+2) + "|\n")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |", name, cells[row][reference], sameAs(cells[row], referenceNFT))
		for _, c := range ourColumns() {
			text := sameAs(cells[row], c.name)
			if i := excuse(row, c.name, cells[row][c.name]); text != "=" && i >= 0 {
				text += fmt.Sprintf(" [%d]", slices.Index(reasons, differences[i].reason)+1)
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
		if i := slices.Index(rows(), row) + 1; i == len(rows()) || !strings.HasPrefix(rows()[i], g+": ") {
			b.WriteString("\n")
		}
	}
	b.WriteString("## Deliberate differences\n\n")
	for i, reason := range reasons {
		fmt.Fprintf(&b, "%d. %s\n", i+1, reason)
	}
	return b.String()
}

// reasons are those of all differences, each once.
func reasons() (out []string) {
	for _, d := range differences {
		if !slices.Contains(out, d.reason) {
			out = append(out, d.reason)
		}
	}
	return out
}

func sameAs(cells map[string]string, column string) string {
	if cells[column] == cells[reference] {
		return "="
	}
	return cells[column]
}
