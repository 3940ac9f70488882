// SPDX-License-Identifier: Apache-2.0

// Package report keeps the samples of a benchmark run and turns them into
// medians, ratios, a table for people and JSON for programs. It measures
// nothing itself.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-cni/sluice/bench/stats"
)

// Metric names one figure and its unit.
type Metric struct {
	Name, Unit string
	// Title and Digits are for the table.
	Title  string
	Digits int
	// Less is true where a smaller value is the better one.
	Less bool
}

// The metrics of bench-quick, in the order of the tables.
var (
	RRP50  = Metric{Name: "rr_p50", Unit: "us", Title: "RR p50, us", Digits: 1, Less: true}
	RRP99  = Metric{Name: "rr_p99", Unit: "us", Title: "RR p99, us", Digits: 1, Less: true}
	RRCPU  = Metric{Name: "rr_cpu", Unit: "us", Title: "RR CPU, us", Digits: 1, Less: true} // of both ends and the kernel's threads, for each exchange
	CRR    = Metric{Name: "crr", Unit: "1/s", Title: "CRR, 1/s"}
	Stream = Metric{Name: "stream", Unit: "Gbit/s", Title: "stream, Gbit/s", Digits: 1}
	Add    = Metric{Name: "add_p50", Unit: "ms", Title: "ADD, ms", Digits: 1, Less: true}
	Del    = Metric{Name: "del_p50", Unit: "ms", Title: "DEL, ms", Digits: 1, Less: true}

	// CPU time of all processes of a verb: what a busy machine does not change.
	AddCPU = Metric{Name: "add_cpu", Unit: "ms", Title: "CPU, ms", Digits: 1, Less: true}
	DelCPU = Metric{Name: "del_cpu", Unit: "ms", Title: "CPU, ms", Digits: 1, Less: true}

	DropRate = Metric{Name: "drops", Unit: "M/s", Title: "dropped, M/s", Digits: 2}
	DropCost = Metric{Name: "drops_cpu", Unit: "M/s", Title: "dropped, M/CPU s", Digits: 2}

	PacketRate = Metric{Name: "packets", Unit: "M/s", Title: "arrived, M/s", Digits: 3}
	PacketCost = Metric{Name: "packets_cpu", Unit: "M/s", Title: "arrived, M/CPU s", Digits: 3}

	Traffic    = []Metric{RRP50, RRP99, RRCPU, CRR, Stream}
	Attachment = []Metric{Add, Del}
	Verbs      = []Metric{Add, AddCPU, Del, DelCPU}
)

// Key tells one cell of the result from the others.
type Key struct {
	Scenario string
	Peer     string
	Pods     int
	Metric   string
}

// Run is all samples of one run of the benchmark, one for each round.
type Run struct {
	samples map[Key][]float64
}

// Add records a sample.
func (r *Run) Add(scenario, peer string, pods int, m Metric, value float64) {
	if r.samples == nil {
		r.samples = map[Key][]float64{}
	}
	k := Key{scenario, peer, pods, m.Name}
	r.samples[k] = append(r.samples[k], value)
}

// Median returns the middle sample, the mean of the two middle ones of an even
// number; ok is false when there is none.
func (r *Run) Median(k Key) (value float64, ok bool) { return median(r.samples[k]) }

// Ratio compares a cell with that of the base peer in the same scenario with as
// many pods, see RatioOf.
func (r *Run) Ratio(k Key, base string) (ratio float64, ok bool) {
	of := k
	of.Peer = base
	return r.RatioOf(k, of)
}

// RatioOf is the median over the rounds of the ratio of two cells in the same
// round, so that a machine that is busier in one round than in another does not
// count against either; ok is false when the two were not measured in the same
// rounds.
func (r *Run) RatioOf(k, of Key) (ratio float64, ok bool) {
	a, b := r.samples[k], r.samples[of]
	if len(a) != len(b) {
		return 0, false
	}
	ratios := make([]float64, len(a))
	for i := range a {
		if b[i] == 0 {
			return 0, false
		}
		ratios[i] = a[i] / b[i]
	}
	return median(ratios)
}

func median(samples []float64) (float64, bool) {
	if len(samples) == 0 {
		return 0, false
	}
	return stats.Median(samples), true
}

// Row is one figure of the JSON report.
type Row struct {
	Scenario string  `json:"scenario"`
	Peer     string  `json:"peer"`
	Pods     int     `json:"pods"`
	Metric   string  `json:"metric"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	// RatioToDirect is null where the direct peer has no such figure.
	RatioToDirect *float64 `json:"ratio_to_direct"`
	// Ratio is to the peer Base, in comparisons with another one than direct.
	Base  string   `json:"base,omitempty"`
	Ratio *float64 `json:"ratio,omitempty"`
}

// Direct is the peer that RatioToDirect is about.
const Direct = "direct"

// Section is a table: the cells of one scenario with one number of pods.
type Section struct {
	Scenario string
	Pods     int
	Title    string
	Metrics  []Metric
}

// Rows returns the medians of the sections, peers in the order given; cells
// that were not measured are not there.
func (r *Run) Rows(sections []Section, peers []string, base string) []Row {
	rows := []Row{}
	for _, s := range sections {
		for _, p := range peers {
			for _, m := range s.Metrics {
				k := Key{s.Scenario, p, s.Pods, m.Name}
				value, ok := r.Median(k)
				if !ok {
					continue
				}
				row := Row{Scenario: s.Scenario, Peer: p, Pods: s.Pods, Metric: m.Name, Value: value, Unit: m.Unit}
				if ratio, ok := r.Ratio(k, base); ok && base == Direct {
					row.RatioToDirect = &ratio
				} else if ok {
					row.Base, row.Ratio = base, &ratio
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// Cell is the raw samples of one figure, one for each round.
type Cell struct {
	Scenario string    `json:"scenario"`
	Peer     string    `json:"peer"`
	Pods     int       `json:"pods"`
	Metric   string    `json:"metric"`
	Samples  []float64 `json:"samples"`
}

// Cells returns everything that was recorded, sorted.
func (r *Run) Cells() []Cell {
	cells := []Cell{}
	for k, s := range r.samples {
		cells = append(cells, Cell{k.Scenario, k.Peer, k.Pods, k.Metric, s})
	}
	slices.SortFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Scenario, b.Scenario), cmp.Compare(a.Pods, b.Pods),
			cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Metric, b.Metric))
	})
	return cells
}

// WriteJSON writes v, indented, to path, whose directory is made when missing.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
