// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Style says how to mark text on a terminal. The zero value marks nothing.
type Style struct{ Colour bool }

func (s Style) paint(code, text string) string {
	if !s.Colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold, Dim, Good and Bad mark text.
func (s Style) Bold(text string) string { return s.paint("1", text) }
func (s Style) Dim(text string) string  { return s.paint("2", text) }
func (s Style) Good(text string) string { return s.paint("32", text) }
func (s Style) Bad(text string) string  { return s.paint("31", text) }

// cell is text and how it is marked, apart, so that columns align.
type cell struct {
	text  string
	paint func(string) string
}

func plain(text string) cell { return cell{text, func(s string) string { return s }} }

// WriteTable writes one section: a line for each peer with the median, the
// smallest and largest round and the ratio to base of each metric.
func (r *Run) WriteTable(w io.Writer, s Section, peers []string, base string, style Style) error {
	header := []cell{plain("")}
	for _, m := range s.Metrics {
		header = append(header, cell{m.Title, style.Bold}, cell{"min..max", style.Dim}, plain(""))
	}
	rows := [][]cell{header}
	for _, p := range peers {
		row := []cell{plain(p)}
		measured := false
		for _, m := range s.Metrics {
			cells, ok := r.metricCells(s, p, m, base, style)
			measured = measured || ok
			row = append(row, cells...)
		}
		if measured {
			rows = append(rows, row)
		}
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", style.Bold(s.Title)); err != nil {
		return err
	}
	return writeAligned(w, rows)
}

// metricCells are median, spread and ratio of one peer.
func (r *Run) metricCells(s Section, peer string, m Metric, base string, style Style) (_ []cell, ok bool) {
	k := Key{s.Scenario, peer, s.Pods, m.Name}
	value, ok := r.Median(k)
	if !ok {
		return []cell{plain("-"), plain(""), plain("")}, false
	}
	lo, hi := value, value
	for _, v := range r.samples[k] {
		lo, hi = min(lo, v), max(hi, v)
	}
	cells := []cell{
		plain(fmt.Sprintf("%.*f", m.Digits, value)),
		{fmt.Sprintf("%.*f..%.*f", m.Digits, lo, m.Digits, hi), style.Dim},
		plain(""),
	}
	if ratio, ok := r.Ratio(k, base); ok && peer != base {
		cells[2] = plain(fmt.Sprintf("%.2fx", ratio))
	}
	return cells, true
}

// WriteRows writes lines of plain text with aligned columns.
func WriteRows(w io.Writer, rows [][]string) error {
	var cells [][]cell
	for _, row := range rows {
		var line []cell
		for _, text := range row {
			line = append(line, plain(text))
		}
		cells = append(cells, line)
	}
	return writeAligned(w, cells)
}

// writeAligned right-aligns every column but the first.
func writeAligned(w io.Writer, rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text))
			switch {
			case i == 0:
				line.WriteString("  " + c.paint(c.text) + pad)
			case c.text == "":
				line.WriteString("  " + pad)
			default:
				line.WriteString("  " + pad + c.paint(c.text))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Goal is a figure that Sluice has to reach.
type Goal struct {
	Text string
	Key  Key
	// Base, when set, makes it a goal for the ratio to that peer; Of, when set,
	// for the ratio to another cell; else it is one for the value.
	Base string
	Of   *Key
	// Min and Max bound it; 0 is no bound.
	Min, Max float64
}

// WriteGoals says for each goal whether it was reached. Goals whose figures
// are missing are left out. It returns how many were missed.
func (r *Run) WriteGoals(w io.Writer, goals []Goal, style Style) (missed int, err error) {
	rows := [][]cell{}
	for _, g := range goals {
		value, ok := r.goalValue(g)
		if !ok {
			continue
		}
		verdict := cell{"missed", style.Bad} // which what is no number is, too
		if (g.Min == 0 || value >= g.Min) && (g.Max == 0 || value <= g.Max) {
			verdict = cell{"reached", style.Good}
		} else {
			missed++
		}
		rows = append(rows, []cell{plain(g.Text), plain(fmt.Sprintf("%.2f", value)), verdict})
	}
	if len(rows) == 0 {
		return 0, nil
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", style.Bold("goals")); err != nil {
		return missed, err
	}
	return missed, writeAligned(w, rows)
}

func (r *Run) goalValue(g Goal) (float64, bool) {
	switch {
	case g.Base != "":
		return r.Ratio(g.Key, g.Base)
	case g.Of != nil:
		return r.RatioOf(g.Key, *g.Of)
	default:
		return r.Median(g.Key)
	}
}
