// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// align says on which side of its column a cell stands.
type align int

const (
	left align = iota
	right
)

type column struct {
	name  string
	align align
	drop  int // on a narrow terminal columns go, the highest number first; 0 stays
}

// table is rows of text under a head, every column as wide as its widest cell.
type table struct {
	columns []column
	rows    [][]string
	indent  string
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = visible(cell)
	}
	t.rows = append(t.rows, cells)
}

// write prints the table, columns two spaces apart and no space at the end of
// a line. The head is dimmed when the output has colours. A width above zero
// is that of the terminal: columns that may go do so until the table fits.
func (t *table) write(w io.Writer, c colours, width int) error {
	for width > 0 && t.width() > width && t.dropColumn() {
	}
	widths := t.widths()
	var b strings.Builder
	head := make([]string, len(t.columns))
	for i, col := range t.columns {
		head[i] = col.name
	}
	b.WriteString(c.dim(t.line(head, widths)))
	b.WriteByte('\n')
	for _, row := range t.rows {
		b.WriteString(t.line(row, widths))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *table) width() int {
	sum := len(t.indent)
	for _, w := range t.widths() {
		sum += w + 2
	}
	return sum - 2
}

// dropColumn removes the column that matters least, false when all must stay.
func (t *table) dropColumn() bool {
	worst := 0
	for i, c := range t.columns {
		if c.drop > t.columns[worst].drop {
			worst = i
		}
	}
	if t.columns[worst].drop == 0 {
		return false
	}
	t.columns = slices.Delete(slices.Clone(t.columns), worst, worst+1)
	for i, row := range t.rows {
		t.rows[i] = slices.Delete(row, worst, worst+1)
	}
	return true
}

func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, col := range t.columns {
		widths[i] = utf8.RuneCountInString(col.name)
	}
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

func (t *table) line(cells []string, widths []int) string {
	var b strings.Builder
	b.WriteString(t.indent)
	for i, cell := range cells {
		if i > 0 {
			b.WriteString("  ")
		}
		gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if t.columns[i].align == right {
			b.WriteString(gap + cell)
		} else {
			b.WriteString(cell + gap)
		}
	}
	return strings.TrimRight(b.String(), " ")
}
