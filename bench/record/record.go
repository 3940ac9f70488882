// SPDX-License-Identifier: Apache-2.0

// Package record is the file in which "bench report" keeps its raw data, and its schema. What it reads may come from others: it is
// checked whole before anybody computes with it. It measures nothing and draws nothing.
package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/bench/report"
)

// Schema is the version of File. A change of the meaning of a field needs another one.
const Schema = "sluice-bench/1"

// What a sample is measured against.
const (
	AxisPods        = "pods"        // attachments of the node
	AxisConnections = "connections" // TCP connections through the hostPort that are open and idle
	AxisRules       = "rules"       // netfilter rules of a third party
)

// Shapes of the load.
const (
	ShapeRR     = "rr"     // a request and its answer on a connection that stays
	ShapeCRR    = "crr"    // a connection for each request
	ShapeStream = "stream" // bytes one way
	ShapeAdd    = "add"    // ADD of one more pod
	ShapeDel    = "del"    // DEL of it
)

// Metrics.
const (
	Rate   = "rate"
	P50    = "p50"
	P99    = "p99"
	P999   = "p999"
	CPU    = "cpu"
	Median = "time" // of one ADD or DEL
)

// Tools besides the programs of apt.
const (
	Probe  = "probe" // the processes of bench/traffic
	Libcni = "libcni"
)

// File is one run.
type File struct {
	Schema string `json:"schema"`
	// Command is what was typed.
	Command string `json:"command"`
	Profile string `json:"profile"`
	// Started is in UTC, RFC 3339.
	Started string  `json:"started"`
	Seconds float64 `json:"seconds"`
	// Commit is of the source that the benchmark and Sluice were built from.
	Commit string      `json:"commit"`
	Host   report.Host `json:"host"`
	// LoadAfter is the load average of the last minute of the run. It has the benchmark's own load in it.
	LoadAfter string `json:"load_after"`
	// Versions are those of tools and peers, by name.
	Versions map[string]string `json:"versions"`
	// Commands are the command lines of each tool and shape, as they were run.
	Commands map[string]string `json:"commands"`
	// Peers are in the order of the tables. Base is what ratios are to, Control the pair of equals.
	Peers   []string `json:"peers"`
	Base    string   `json:"base"`
	Control []string `json:"control"`
	// Titles are the peers' names for people. A peer without one has its own.
	Titles map[string]string `json:"titles"`
	// Disturbed counts measurements during which other traffic overran the kernel's packet queues.
	Disturbed int       `json:"disturbed"`
	Skipped   []Skipped `json:"skipped"`
	Cells     []Cell    `json:"cells"`
}

// Skipped says what was not measured, and why.
type Skipped struct {
	Axis   string `json:"axis"`
	At     int    `json:"at"`
	Peer   string `json:"peer"`
	Reason string `json:"reason"`
}

// Key tells one cell from the others. At is the place on the axis, Flows the number of connections of the load.
type Key struct {
	Axis   string `json:"axis"`
	At     int    `json:"at"`
	Peer   string `json:"peer"`
	Tool   string `json:"tool"`
	Shape  string `json:"shape"`
	Flows  int    `json:"flows"`
	Metric string `json:"metric"`
}

// String names the cell in messages.
func (k Key) String() string {
	return fmt.Sprintf("%s=%d %s %s/%s/%d %s", k.Axis, k.At, k.Peer, k.Tool, k.Shape, k.Flows, k.Metric)
}

// Cell is one figure with its samples, one of each round.
type Cell struct {
	Key
	Unit string `json:"unit"`
	// Less is true where a smaller value is the better one.
	Less    bool      `json:"less"`
	Samples []float64 `json:"samples"`
}

// Unit of a metric of a shape, and whether less is better.
func Unit(shape, metric string) (unit string, less bool) {
	switch {
	case shape == ShapeAdd || shape == ShapeDel:
		return "ms", true
	case metric == P50 || metric == P99 || metric == P999:
		return "us", true
	case metric == CPU && shape == ShapeStream:
		return "ns/KiB", true
	case metric == CPU:
		return "us", true
	case shape == ShapeStream:
		return "Gbit/s", false
	default:
		return "1/s", false
	}
}

// Add records a sample.
func (f *File) Add(k Key, value float64) {
	for i := range f.Cells {
		if f.Cells[i].Key == k {
			f.Cells[i].Samples = append(f.Cells[i].Samples, value)
			return
		}
	}
	unit, less := Unit(k.Shape, k.Metric)
	f.Cells = append(f.Cells, Cell{Key: k, Unit: unit, Less: less, Samples: []float64{value}})
}

// LeaveOut notes what is not measured.
func (f *File) LeaveOut(axis string, at int, peer, reason string) {
	f.Skipped = append(f.Skipped, Skipped{axis, at, peer, reason})
}

// Title is a peer's name for people.
func (f *File) Title(peer string) string {
	if t := f.Titles[peer]; t != "" {
		return t
	}
	return peer
}

// Load is what runs at a place: the cells of one tool, shape and number of flows.
type Load struct {
	Axis, Tool, Shape string
	Flows             int
}

// Loads are those of an axis, in the order of the cells.
func (f *File) Loads(axis string) []Load {
	var loads []Load
	for _, c := range f.Cells {
		if l := (Load{c.Axis, c.Tool, c.Shape, c.Flows}); c.Axis == axis && !slices.Contains(loads, l) {
			loads = append(loads, l)
		}
	}
	return loads
}

// Metrics are those of a load, in the order of Metrics.
func (f *File) Metrics(l Load) []string {
	var found []string
	for _, m := range metrics {
		if slices.ContainsFunc(f.Cells, func(c Cell) bool {
			return c.Metric == m && (Load{c.Axis, c.Tool, c.Shape, c.Flows}) == l
		}) {
			found = append(found, m)
		}
	}
	return found
}

// Key is that of a metric of the load.
func (l Load) Key(at int, peer, metric string) Key {
	return Key{l.Axis, at, peer, l.Tool, l.Shape, l.Flows, metric}
}

// Axes are all that there may be, in order.
func Axes() []string { return slices.Clone(axes) }

// Find returns the cell of a key, nil if there is none.
func (f *File) Find(k Key) *Cell {
	for i := range f.Cells {
		if f.Cells[i].Key == k {
			return &f.Cells[i]
		}
	}
	return nil
}

// Points are the places on an axis, in order.
func (f *File) Points(axis string) []int {
	var at []int
	for _, c := range f.Cells {
		if c.Axis == axis && !slices.Contains(at, c.At) {
			at = append(at, c.At)
		}
	}
	slices.Sort(at)
	return at
}

// Write puts the file at a path, whose directory is made when missing.
func (f *File) Write(path string) error {
	slices.SortStableFunc(f.Cells, func(a, b Cell) int { return compareKeys(a.Key, b.Key) })
	if err := f.check(); err != nil {
		return err
	}
	text, err := f.text()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// text is the file with one line for each cell, and samples of six digits: a run is committed, and few clocks tell more.
func (f *File) text() ([]byte, error) {
	head := *f
	head.Cells = nil
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return nil, err
	}
	text = append(bytes.TrimSuffix(text, []byte("null\n}")), '[')
	for i, c := range f.Cells {
		c.Samples = slices.Clone(c.Samples)
		for j, v := range c.Samples {
			if c.Samples[j], err = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64); err != nil {
				return nil, err
			}
		}
		cell, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, "\n    "...), cell...)
	}
	return append(text, "\n  ]\n}\n"...), nil
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Axis, b.Axis), cmp.Compare(a.At, b.At), cmp.Compare(a.Tool, b.Tool), cmp.Compare(a.Shape, b.Shape),
		cmp.Compare(a.Flows, b.Flows), cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Peer, b.Peer))
}

// maxSize is far above what a run of half an hour writes.
const maxSize = 64 << 20

// Read reads and checks a file. Its errors name the path and what is wrong.
func Read(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSize {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxSize)
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Clean(path), err)
	}
	return f, nil
}

func parse(text []byte) (*File, error) {
	var version struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("not a JSON object of bench report: %w", err)
	}
	if version.Schema == nil {
		return nil, errors.New(`schema: missing; "bench report" writes such files`)
	}
	if *version.Schema != Schema {
		return nil, fmt.Errorf("schema: %q: this program reads %q", *version.Schema, Schema)
	}
	f := &File{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(f); err != nil {
		return nil, err
	}
	return f, f.check()
}

var (
	axes    = []string{AxisPods, AxisConnections, AxisRules}
	shapes  = []string{ShapeRR, ShapeCRR, ShapeStream, ShapeAdd, ShapeDel}
	metrics = []string{Rate, P50, P99, P999, CPU, Median}
)

// check refuses what could not be computed with, or would stand in a report for something else.
func (f *File) check() error {
	if len(f.Cells) == 0 {
		return errors.New("cells: none")
	}
	for i, p := range f.Peers {
		if p == "" || slices.Contains(f.Peers[:i], p) {
			return fmt.Errorf("peers: %q: empty or twice", p)
		}
	}
	for _, p := range append(slices.Clone(f.Control), f.Base) {
		if p != "" && !slices.Contains(f.Peers, p) {
			return fmt.Errorf("base or control: %q: not one of the peers", p)
		}
	}
	if n := len(f.Control); n != 0 && n != 2 {
		return fmt.Errorf("control: %d peers, want two", n)
	}
	seen := map[Key]bool{}
	for i, c := range f.Cells {
		if err := c.check(f.Peers); err != nil {
			return fmt.Errorf("cells[%d]: %w", i, err)
		}
		if seen[c.Key] {
			return fmt.Errorf("cells[%d]: %s: twice", i, c.Key)
		}
		seen[c.Key] = true
	}
	return nil
}

func (c Cell) check(peers []string) error {
	for _, field := range []struct {
		name, value string
		of          []string
	}{{"axis", c.Axis, axes}, {"shape", c.Shape, shapes}, {"metric", c.Metric, metrics}, {"peer", c.Peer, peers}} {
		if !slices.Contains(field.of, field.value) {
			return fmt.Errorf("%s: %q: not one of %s", field.name, field.value, strings.Join(field.of, ", "))
		}
	}
	if unit, less := Unit(c.Shape, c.Metric); c.Unit != unit || c.Less != less {
		return fmt.Errorf("%s: unit %q, less %v: want %q, %v", c.Key, c.Unit, c.Less, unit, less)
	}
	if c.Tool == "" || c.Flows < 1 || c.At < 0 {
		return fmt.Errorf("%s: tool, flows or place is missing", c.Key)
	}
	if len(c.Samples) == 0 {
		return fmt.Errorf("%s: samples: none", c.Key)
	}
	for _, v := range c.Samples {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("%s: samples: %v is no measured value", c.Key, v)
		}
	}
	return nil
}
