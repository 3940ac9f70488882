// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleRun() *Run {
	r := &Run{}
	for _, s := range []struct {
		peer   string
		m      Metric
		values []float64
	}{
		{"direct", RRP50, []float64{10, 14, 12}},
		{"direct", CRR, []float64{20000, 22000}},
		{"sluice", RRP50, []float64{15, 13, 12}},
		{"sluice", CRR, []float64{18000, 19000}},
	} {
		for _, v := range s.values {
			r.Add("hostport", s.peer, 2, s.m, v)
		}
	}
	r.Add("attach", "sluice", 2, Add, 24.5)
	return r
}

var sampleSections = []Section{
	{Scenario: "hostport", Pods: 2, Title: "traffic", Metrics: []Metric{RRP50, CRR}},
	{Scenario: "attach", Pods: 2, Title: "attach", Metrics: []Metric{Add}},
}

func TestMedian(t *testing.T) {
	tests := []struct {
		name   string
		in     []float64
		want   float64
		wantOK bool
	}{
		{"none", nil, 0, false},
		{"one", []float64{3}, 3, true},
		{"odd, unsorted", []float64{9, 1, 5}, 5, true},
		{"even", []float64{4, 1, 2, 9}, 3, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := append([]float64(nil), tt.in...)
			got, ok := median(in)
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("got %v %v, want %v %v", got, ok, tt.want, tt.wantOK)
			}
			if d := cmp.Diff(tt.in, in); d != "" {
				t.Errorf("samples were reordered: %s", d)
			}
		})
	}
}

func TestRows(t *testing.T) {
	ratio := func(f float64) *float64 { return &f }
	want := []Row{
		{"hostport", "direct", 2, "rr_p50", 12, "us", ratio(1), "", nil},
		{"hostport", "direct", 2, "crr", 21000, "1/s", ratio(1), "", nil},
		{"hostport", "sluice", 2, "rr_p50", 13, "us", ratio(1), "", nil}, // of 15/10, 13/14 and 12/12
		{"hostport", "sluice", 2, "crr", 18500, "1/s", ratio((18000.0/20000 + 19000.0/22000) / 2), "", nil},
		{"attach", "sluice", 2, "add_p50", 24.5, "ms", nil, "", nil},
	}
	got := sampleRun().Rows(sampleSections, []string{"direct", "reference", "sluice"}, "direct")
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A ratio is named after what it is to.
func TestRowsOfAnotherBase(t *testing.T) {
	r := &Run{}
	r.Add("bridge", "reference", 1, Add, 10)
	r.Add("bridge", "sluice", 1, Add, 5)
	rows := r.Rows([]Section{{Scenario: "bridge", Pods: 1, Metrics: []Metric{Add}}}, []string{"sluice"}, "reference")
	raw, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"scenario":"bridge","peer":"sluice","pods":1,"metric":"add_p50","value":5,"unit":"ms","ratio_to_direct":null,"base":"reference","ratio":0.5}]`
	if d := cmp.Diff(want, string(raw)); d != "" {
		t.Error(d)
	}
}

func TestCells(t *testing.T) {
	var got []string
	for _, c := range sampleRun().Cells() {
		got = append(got, fmt.Sprint(c.Scenario, " ", c.Peer, " ", c.Metric, " ", len(c.Samples)))
	}
	want := []string{"attach sluice add_p50 1", "hostport direct crr 2", "hostport direct rr_p50 3", "hostport sluice crr 2", "hostport sluice rr_p50 3"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestWriteJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "quick.json")
	if err := WriteJSON(path, sampleRun().Rows(sampleSections, []string{"sluice"}, "direct")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if v, ok := last["ratio_to_direct"]; !ok || v != nil {
		t.Errorf("ratio_to_direct of ADD: %v %v, want null", v, ok)
	}
	var empty Run
	if err := WriteJSON(path, empty.Rows(nil, nil, "")); err != nil {
		t.Fatal(err)
	}
	if b, _ = os.ReadFile(path); strings.TrimSpace(string(b)) != "[]" {
		t.Errorf("an empty report is %s, want []", b)
	}
}

func TestWriteTable(t *testing.T) {
	var b strings.Builder
	for _, s := range sampleSections {
		if err := sampleRun().WriteTable(&b, s, []string{"direct", "reference", "sluice"}, "direct", Style{}); err != nil {
			t.Fatal(err)
		}
	}
	want := `
traffic
          RR p50, us    min..max         CRR, 1/s      min..max
  direct        12.0  10.0..14.0            21000  20000..22000
  sluice        13.0  12.0..15.0  1.00x     18500  18000..19000  0.88x

attach
          ADD, ms    min..max
  sluice     24.5  24.5..24.5
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

func TestColourKeepsAlignment(t *testing.T) {
	var coloured, plain strings.Builder
	r := sampleRun()
	for b, style := range map[*strings.Builder]Style{&coloured: {Colour: true}, &plain: {}} {
		if err := r.WriteTable(b, sampleSections[0], []string{"direct", "sluice"}, "direct", style); err != nil {
			t.Fatal(err)
		}
	}
	if coloured.String() == plain.String() {
		t.Error("no colour")
	}
	strip := strings.NewReplacer("\x1b[1m", "", "\x1b[2m", "", "\x1b[0m", "")
	if d := cmp.Diff(plain.String(), strip.Replace(coloured.String())); d != "" {
		t.Error(d)
	}
}

func TestWriteGoals(t *testing.T) {
	key := func(scenario string, m Metric) Key { return Key{scenario, "sluice", 2, m.Name} }
	of := key("hostport", RRP50)
	tests := []struct {
		name string
		goal Goal
		want string
	}{
		{"ratio reached", Goal{Key: key("hostport", RRP50), Base: "direct", Max: 1.15}, "1.00  reached"},
		{"ratio missed", Goal{Key: key("hostport", CRR), Base: "direct", Min: 0.9}, "0.88  missed"},
		{"value reached", Goal{Key: key("attach", Add), Max: 25}, "24.50  reached"},
		{"of another cell", Goal{Key: key("hostport", RRP50), Of: &of, Min: 0.95, Max: 1.05}, "1.00  reached"},
		{"not measured", Goal{Key: key("attach", Del), Max: 40}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			missed, err := sampleRun().WriteGoals(&b, []Goal{tt.goal}, Style{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(b.String(), tt.want) || (tt.want == "") != (b.Len() == 0) {
				t.Errorf("got %q, want %q", b.String(), tt.want)
			}
			if want := strings.Contains(tt.want, "missed"); (missed == 1) != want {
				t.Errorf("%d missed", missed)
			}
		})
	}
}

// What is no number reaches no goal.
func TestGoalOfNoNumber(t *testing.T) {
	r := &Run{}
	r.Add("deny", "sluice", 4, DropCost, math.NaN())
	key := Key{"deny", "sluice", 4, DropCost.Name}
	for _, goal := range []Goal{{Key: key, Min: 5}, {Key: key, Max: 5}} {
		var b strings.Builder
		if missed, err := r.WriteGoals(&b, []Goal{goal}, Style{}); err != nil || missed != 1 || !strings.Contains(b.String(), "missed") {
			t.Errorf("%v: %d missed: %q", err, missed, b.String())
		}
	}
}

func TestSumQueueDrops(t *testing.T) {
	got, err := sumQueueDrops("03b11fcf 00036b9c 0000000c\n0612d55b 00000001 0000000c\n")
	if want := uint64(0x36b9d); err != nil || got != want {
		t.Errorf("got %#x (%v), want %#x", got, err, want)
	}
	for _, bad := range []string{"1\n", "1 xyz\n"} {
		if _, err := sumQueueDrops(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
	if _, err := QueueDrops(); err != nil {
		t.Error(err)
	}
}
