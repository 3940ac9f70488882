// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/stats"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// TestMain lets the test binary be the agent that a world starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == traffic.Arg {
		if err := traffic.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// made is a made-up report: rounds of a rate and of a time, both scaled.
func made(scaleRate, scaleTime float64) *record.File {
	f := &record.File{Schema: record.Schema, Command: "x", Started: "then", Commit: "abc", Host: report.Host{CPU: "a", CPUs: 2}, Peers: []string{"direct", "sluice"}, Base: "direct"}
	for _, peer := range f.Peers {
		for i := range 10 {
			noise := 1 + 0.003*float64(i*7%10)
			f.Add(record.Key{Axis: record.AxisPods, At: 2, Peer: peer, Tool: "wrk", Shape: record.ShapeCRR, Flows: 32, Metric: record.Rate}, 1000*noise*scaleRate)
			f.Add(record.Key{Axis: record.AxisPods, At: 2, Peer: peer, Tool: "wrk", Shape: record.ShapeRR, Flows: 1, Metric: record.P99}, 50*noise*scaleTime)
		}
	}
	return f
}

// Files on disk, compared as the command does: a regression gives its exit status, an improvement and equals do not.
func TestCompare(t *testing.T) {
	test := stats.Test{Alpha: 0.05, Threshold: 0.05}
	for _, tt := range []struct {
		name        string
		rate, times float64
		peer        string
		test        stats.Test
		err         error
		want        string
	}{
		{"equals", 1, 1, "", test, nil, "4 metrics: 0 worse, 0 better, 4 without a difference"},
		{"a lower rate", 0.9, 1, "", test, errRegression, "2 worse, 0 better"},
		{"a longer time", 1, 1.1, "", test, errRegression, "2 worse, 0 better"},
		{"a higher rate and a shorter time", 1.1, 0.9, "", test, nil, "0 worse, 4 better"},
		{"below the threshold", 0.9, 1, "", stats.Test{Alpha: 0.05, Threshold: 0.2}, nil, "0 worse"},
		{"one peer", 0.9, 1, "sluice", test, errRegression, "2 metrics: 1 worse"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := compareFiles(&out, made(1, 1), made(tt.rate, tt.times), tt.peer, tt.test, false)
			if !errors.Is(err, tt.err) || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%v, want %v; %q, want %q", err, tt.err, out.String(), tt.want)
			}
			if tt.err != nil && !strings.Contains(out.String(), "worse") {
				t.Error("the metric is not named")
			}
		})
	}
	var out bytes.Buffer
	if err := compareFiles(&out, made(1, 1), made(1, 1), "", test, true); err != nil || strings.Count(out.String(), "no difference") != 4 {
		t.Errorf("-all: %v %s", err, out.String())
	}
	few := made(0.5, 2)
	for i := range few.Cells {
		few.Cells[i].Samples = few.Cells[i].Samples[:1]
	}
	out.Reset()
	if err := compareFiles(&out, made(1, 1), few, "", test, false); err != nil || !strings.Contains(out.String(), "4 with too few rounds") {
		t.Errorf("one round: %v %s", err, out.String())
	}
}

// Bad input is named: the file, the flag, the peer.
func TestCompareBadInput(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	if err := made(1, 1).Write(good); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte(`{"schema": "sluice-bench/9"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{good}, "1 files, want two"},
		{[]string{good, filepath.Join(dir, "none.json")}, "none.json"},
		{[]string{bad, good}, "bad.json: schema"},
		{[]string{"-threshold", "-1", good, good}, "-threshold: must be"},
		{[]string{"-alpha", "2", good, good}, "-alpha: must be"},
		{[]string{"-peer", "nobody", good, good}, `-peer: "nobody"`},
	} {
		if err := runCompare(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q", tt.args, err, tt.want)
		}
	}
	if err := runCompare([]string{good, good}); err != nil {
		t.Errorf("a file beside itself: %v", err)
	}
}

// The page is drawn again from the raw data, and so is the README.
func TestReportFrom(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	if err := made(1, 1).Write(path); err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(dir, "README.md")
	const begin, end = "<!-- bench report: begin; go run ./bench report -from FILE -readme README.md -->\n", "<!-- bench report: end -->\n"
	if err := os.WriteFile(readme, []byte("# X\n"+begin+end), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := runReport(t.Context(), []string{"-from", path, "-readme", readme}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(readme)
	if err != nil || !strings.Contains(string(text), "| wrk: a connection for each request, 32 flows: connections, 1/s |") {
		t.Errorf("%v: %s", err, text)
	}
	for _, file := range []string{filepath.Join(dir, "report.html"), filepath.Join(dir, "docs/images/bench-wrk-crr-32-rate.svg")} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	if err := runReport(t.Context(), []string{"-from", filepath.Join(dir, "none.json")}); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Error(err)
	}
}

// A place whose pods cannot be made in time is left out before it costs that time.
func TestTooSlow(t *testing.T) {
	t.Parallel()
	r := &fullReport{profile: profile{setUp: 150 * time.Second}, took: map[string]pace{
		"fast": {250, 3 * time.Second}, "slow": {250, 40 * time.Second}, "few": {2, 40 * time.Second}, "given up": {50, 150 * time.Second},
	}}
	for _, tc := range []struct {
		peer string
		pods int
		want string
	}{
		{"fast", 2000, ""},
		{"fast", 10000, ""},
		{"slow", 10000, "250 pods took 40s or more already"},
		{"slow", 2000, "250 pods took 40s or more already"},
		{"few", 2000, ""}, // most of it may be the load of programs
		{"new", 2000, ""},
		{"given up", 60, "50 pods took 2m30s or more already"},
	} {
		if got := r.tooSlow(tc.peer, tc.pods); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %d pods: %q, want %q", tc.peer, tc.pods, got, tc.want)
		}
	}
}

// The small profile with two equals: every tool and every axis is in the raw data and on the page, with a control.
func TestPrivilegedReportQuick(t *testing.T) {
	bin, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	out := filepath.Join(t.TempDir(), "report.json")
	err = runReport(t.Context(), []string{"-quick", "-budget", "1h", "-setup", "30m", "-peers", "direct,sluice,sluice-again", "-sluice-bin", bin.Dir, "-out", out})
	if err != nil && !errors.Is(err, errControl) { // a busy machine is no fault of the program
		t.Fatal(err)
	}
	f, err := record.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Skipped) > 0 {
		t.Errorf("not measured: %+v", f.Skipped)
	}
	for _, peer := range []string{subject.Direct, subject.Sluice, subject.SluiceAgain} {
		for _, k := range []record.Key{
			{Axis: record.AxisPods, At: 2, Tool: "iperf3", Shape: record.ShapeStream, Flows: 32, Metric: record.Rate},
			{Axis: record.AxisPods, At: 2, Tool: "wrk", Shape: record.ShapeRR, Flows: 1, Metric: record.P999},
			{Axis: record.AxisPods, At: 2, Tool: "wrk", Shape: record.ShapeCRR, Flows: 32, Metric: record.CPU},
			{Axis: record.AxisPods, At: 2, Tool: "sockperf", Shape: record.ShapeRR, Flows: 1, Metric: record.P50},
			{Axis: record.AxisPods, At: 20, Tool: record.Probe, Shape: record.ShapeCRR, Flows: 32, Metric: record.P999},
			{Axis: record.AxisPods, At: 2, Tool: record.Probe, Shape: record.ShapeStream, Flows: 1, Metric: record.CPU},
			{Axis: record.AxisConnections, At: 200, Tool: record.Probe, Shape: record.ShapeRR, Flows: 1, Metric: record.P99},
			{Axis: record.AxisRules, At: 500, Tool: record.Probe, Shape: record.ShapeCRR, Flows: 32, Metric: record.Rate},
		} {
			k.Peer = peer
			if peer == subject.SluiceAgain && (k.Axis != record.AxisPods || k.At != 2) {
				continue // the control is measured in one place
			}
			if c := f.Find(k); c == nil || c.Samples[0] <= 0 {
				t.Errorf("no %s", k)
			}
		}
	}
	html, err := os.ReadFile(strings.TrimSuffix(out, ".json") + ".html")
	if err != nil || !bytes.Contains(html, []byte(`id="verdict"`)) || bytes.Count(html, []byte("<svg ")) < 12 {
		t.Errorf("%v: the page has %d pictures", err, bytes.Count(html, []byte("<svg ")))
	}
}
