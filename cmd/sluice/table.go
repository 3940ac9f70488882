// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
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
	drop  int  // on a narrow terminal columns go, the highest number first; 0 stays
	cut   bool // and what is in it is shortened in the middle, once no more columns may go
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
// is that of the terminal: columns that may go do so until the table fits, then cells of others are shortened.
func (t *table) write(w io.Writer, c colours, width int) error {
	for width > 0 && t.width() > width && t.dropColumn() {
	}
	if width > 0 {
		t.shorten(width)
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

// minCut is the width below which a cell says nothing any more.
const minCut = 8

// shorten cuts cells of the columns that allow it, always of the widest one, until the table fits.
func (t *table) shorten(width int) {
	widths := t.widths()
	for over := t.width() - width; over > 0; {
		widest, next := -1, minCut
		for i, c := range t.columns {
			switch {
			case !c.cut || widths[i] <= minCut:
			case widest < 0 || widths[i] > widths[widest]:
				if widest >= 0 {
					next = max(next, widths[widest])
				}
				widest = i
			default:
				next = max(next, widths[i])
			}
		}
		if widest < 0 {
			return
		}
		less := min(over, max(widths[widest]-next, 1))
		widths[widest] -= less
		over -= less
		for _, row := range t.rows {
			row[widest] = terminal.Cut(row[widest], widths[widest])
		}
		t.columns = slices.Clone(t.columns)
		t.columns[widest].name = terminal.Cut(t.columns[widest].name, widths[widest])
	}
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
