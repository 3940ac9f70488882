// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample() *File {
	f := &File{
		Schema: Schema, Command: "bench report", Profile: "quick", Started: "2026-11-25T22:00:00Z", Commit: "abc",
		Versions: map[string]string{"wrk": "4.1.0"}, Commands: map[string]string{"wrk/rr/1": "wrk -t1"},
		Peers: []string{"direct", "sluice", "sluice-again"}, Base: "direct", Control: []string{"sluice", "sluice-again"}, Skipped: []Skipped{},
	}
	for _, peer := range f.Peers {
		for _, v := range []float64{10, 11, 12} {
			f.Add(Key{AxisPods, 2, peer, Probe, ShapeRR, 1, P50}, v)
		}
	}
	f.Add(Key{AxisRules, 5000, "sluice", "iperf3", ShapeStream, 32, Rate}, 30)
	f.LeaveOut(AxisPods, 10000, "reference", "no time")
	return f
}

// What is written is read again.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "report.json")
	want := sample()
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	k := Key{AxisRules, 5000, "sluice", "iperf3", ShapeStream, 32, Rate}
	if c := got.Find(k); c == nil || c.Unit != "Gbit/s" || c.Less {
		t.Errorf("%s: %+v", k, c)
	}
	if d := cmp.Diff([]int{2}, got.Points(AxisPods)); d != "" {
		t.Error(d)
	}
}

// Bad input is named: the field, and the value that is wrong.
func TestBadInput(t *testing.T) {
	edit := func(change func(map[string]any)) string {
		text, err := json.Marshal(sample())
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		text, err = json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cell := func(key string, value any) string {
		return edit(func(m map[string]any) { m["cells"].([]any)[0].(map[string]any)[key] = value })
	}
	for _, tt := range []struct{ name, text, want string }{
		{"no JSON", "<html>", "not a JSON object of bench report"},
		{"a list", "[]", "not a JSON object of bench report"},
		{"of another program", "{}", "schema: missing"},
		{"newer", `{"schema": "sluice-bench/2"}`, `schema: "sluice-bench/2"`},
		{"unknown field", edit(func(m map[string]any) { m["frob"] = 1 }), `unknown field "frob"`},
		{"no cells", edit(func(m map[string]any) { m["cells"] = []any{} }), "cells: none"},
		{"control of one", edit(func(m map[string]any) { m["control"] = []any{"sluice"} }), "control: 1 peers"},
		{"control of others", edit(func(m map[string]any) { m["control"] = []any{"sluice", "x"} }), `"x": not one of the peers`},
		{"peer twice", edit(func(m map[string]any) { m["peers"] = []any{"direct", "direct"} }), `peers: "direct"`},
		{"axis", cell("axis", "moons"), `cells[0]: axis: "moons"`},
		{"peer", cell("peer", "nobody"), `peer: "nobody"`},
		{"metric", cell("metric", "p42"), `metric: "p42"`},
		{"unit", cell("unit", "ms"), `unit "ms"`},
		{"flows", cell("flows", 0), "flows"},
		{"no samples", cell("samples", []any{}), "samples: none"},
		{"negative", cell("samples", []any{-1}), "samples: -1"},
		{"text", cell("samples", []any{"1"}), "cannot unmarshal string"},
		{"a cell twice", edit(func(m map[string]any) { c := m["cells"].([]any); m["cells"] = append(c, c[0]) }), "twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.json")
			if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "bad.json") {
				t.Errorf("got %v, want %q of bad.json", err, tt.want)
			}
		})
	}
	f := sample()
	f.Cells[0].Samples[0] = math.NaN()
	if err := f.Write(filepath.Join(t.TempDir(), "x.json")); err == nil {
		t.Error("no number is written")
	}
}
