// SPDX-License-Identifier: Apache-2.0

// Package page draws a run of "bench report": one HTML file that needs nothing else, and the part of the README that has figures.
// All that it shows is in the record: the same record gives the same bytes.
package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/stats"
)

//go:embed page.html
var source string

//go:embed style.css
var style string

var layout = template.Must(template.New("page").Parse(source))

// The control is tested so: among equals, one run in a hundred finds a difference.
const (
	controlAlpha     = 0.01
	controlThreshold = 0.03
)

// Control compares the pair of equals, metric by metric. The verdicts are for people and for the exit status.
type Control struct {
	Rows []ControlRow
	// Different counts metrics in which equals differ, TooFew those in which no number of rounds like this could tell.
	Different, TooFew int
}

// ControlRow is one metric.
type ControlRow struct {
	Key    record.Key
	Metric string
	Where  string
	stats.Comparison
}

// Judge makes the control's comparisons.
func Judge(f *record.File) Control {
	var c Control
	if len(f.Control) != 2 {
		return c
	}
	var cells [][2]*record.Cell
	var pairs []stats.Pair
	for i := range f.Cells {
		first := &f.Cells[i]
		k := first.Key
		k.Peer = f.Control[1]
		if second := f.Find(k); second != nil && first.Peer == f.Control[0] {
			cells = append(cells, [2]*record.Cell{first, second})
			pairs = append(pairs, stats.Pair{Old: first.Samples, New: second.Samples, Less: first.Less})
		}
	}
	for i, compared := range (stats.Test{Alpha: controlAlpha, Threshold: controlThreshold}).Compare(pairs) {
		k := cells[i][0].Key
		row := ControlRow{
			Key: k, Comparison: compared,
			Metric: fmt.Sprintf("%s, %s: %s", loadTitle(record.Load{Axis: k.Axis, Tool: k.Tool, Shape: k.Shape, Flows: k.Flows}), metricTitle(k.Shape, k.Metric), cells[i][0].Unit),
			Where:  fmt.Sprintf("%s: %s", axisTitle(k.Axis), thousands(float64(k.At), 0)),
		}
		switch row.Verdict {
		case stats.TooFew:
			c.TooFew++
		case stats.Better, stats.Worse:
			c.Different++
			row.Verdict = difference
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}

// difference is the verdict on equals that differ: neither of them is the better one.
const difference = stats.Verdict("difference")

// Summary is the control's sentence.
func (c Control) Summary() string {
	switch {
	case len(c.Rows) == 0:
		return "There was no control in this run."
	case c.Different > 0:
		return fmt.Sprintf("DIFFERENCE in %d of %d metrics: the same subject, measured twice, differs. Do not trust this run; something else used the machine.", c.Different, len(c.Rows))
	case c.TooFew == len(c.Rows):
		return fmt.Sprintf("Too few rounds to say anything: in none of %d metrics could a difference have been sure.", len(c.Rows))
	case c.TooFew > 0:
		return fmt.Sprintf("No difference in %d of %d metrics. The other %d have too few rounds to say anything.", len(c.Rows)-c.TooFew, len(c.Rows), c.TooFew)
	default:
		return fmt.Sprintf("No difference in %d of %d metrics.", len(c.Rows), len(c.Rows))
	}
}

// section is one load: a picture and its table.
type section struct {
	Title, Command, Picture string
	SVG                     template.HTML
	Metrics                 []string
	Rows                    []row
}

type row struct {
	At, Peer string
	Colour   int
	Cells    []cell
}

type cell struct{ Median, MAD, Ratio string }

type part struct {
	Heading, About, Axis string
	Sections             []section
}

type pair struct{ Name, Value string }

type view struct {
	File       *record.File
	Style      template.CSS
	Facts      []pair
	Commands   []pair
	Control    Control
	ControlSVG template.HTML
	Parts      []part
	Base       string
	Title      func(string) string
	Value      func(float64) string
	Ratio      func(float64) string
	P          func(float64) string
}

// HTML is the report of a run.
func HTML(f *record.File) ([]byte, error) {
	v := view{
		File: f, Style: template.CSS(style), Control: Judge(f), Base: f.Title(f.Base),
		Title: f.Title, Value: value, Ratio: ratio, P: pValue,
	}
	v.Facts = facts(f)
	if len(v.Control.Rows) > 0 {
		svg, err := controlPicture(v.Control)
		if err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
		v.ControlSVG = template.HTML(svg) // the library escapes text
	}
	for _, name := range slices.Sorted(maps.Keys(f.Commands)) {
		v.Commands = append(v.Commands, pair{name, f.Commands[name]})
	}
	for _, axis := range record.Axes() {
		p := part{Heading: axisHeading(axis), About: axisTitle(axis), Axis: axis}
		for _, l := range f.Loads(axis) {
			s, err := newSection(f, l)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", loadTitle(l), err)
			}
			p.Sections = append(p.Sections, s)
		}
		if len(p.Sections) > 0 {
			v.Parts = append(v.Parts, p)
		}
	}
	var out bytes.Buffer
	if err := layout.Execute(&out, v); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// facts are the conditions of the run.
func facts(f *record.File) []pair {
	out := []pair{
		{"started", f.Started}, {"took", fmt.Sprintf("%.0f s, profile %s", f.Seconds, f.Profile)}, {"command", f.Command}, {"commit", f.Commit},
		{"kernel", f.Host.Kernel}, {"CPU", fmt.Sprintf("%d x %s", f.Host.CPUs, f.Host.CPU)},
		{"load before, after", f.Host.Load + ", " + f.LoadAfter}, {"Go", f.Host.Go}, {"iptables", f.Host.Iptables},
	}
	for _, name := range slices.Sorted(maps.Keys(f.Versions)) {
		out = append(out, pair{f.Title(name), f.Versions[name]})
	}
	return append(out, pair{"queues overrun", fmt.Sprintf("during %d measurements", f.Disturbed)})
}

func newSection(f *record.File, l record.Load) (section, error) {
	metrics := f.Metrics(l)
	head := headline(metrics)
	s := section{Title: loadTitle(l), Command: f.Commands[commandName(l)], Picture: metricTitle(l.Shape, head)}
	svg, err := picture(f, l, head)
	if err != nil {
		return s, err
	}
	s.SVG = template.HTML(svg) // the library escapes text
	for _, m := range metrics {
		unit, _ := record.Unit(l.Shape, m)
		s.Metrics = append(s.Metrics, metricTitle(l.Shape, m)+", "+unit)
	}
	for _, at := range f.Points(l.Axis) {
		for i, peer := range f.Peers {
			r := row{At: thousands(float64(at), 0), Peer: f.Title(peer), Colour: i % colours}
			measured := false
			for _, m := range metrics {
				c := f.Find(l.Key(at, peer, m))
				if c == nil {
					r.Cells = append(r.Cells, cell{Median: "-"})
					continue
				}
				measured = true
				r.Cells = append(r.Cells, cell{value(stats.Median(c.Samples)), value(stats.MAD(c.Samples)), baseRatio(f, l, at, peer, m)})
			}
			if measured {
				s.Rows = append(s.Rows, r)
			}
		}
	}
	return s, nil
}

// commandName is where a load's command line is in the record.
func commandName(l record.Load) string { return fmt.Sprintf("%s/%s/%d", l.Tool, l.Shape, l.Flows) }

// baseRatio is the median over the rounds of the ratio to the base in the same round: a machine that is busier in one round than in
// another does not count against either.
func baseRatio(f *record.File, l record.Load, at int, peer, metric string) string {
	c, base := f.Find(l.Key(at, peer, metric)), f.Find(l.Key(at, f.Base, metric))
	if peer == f.Base || c == nil || base == nil || len(c.Samples) != len(base.Samples) {
		return ""
	}
	ratios := make([]float64, len(c.Samples))
	for i, v := range c.Samples {
		if base.Samples[i] == 0 {
			return ""
		}
		ratios[i] = v / base.Samples[i]
	}
	return ratio(stats.Median(ratios))
}
