// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/page"
	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/bench/tool"
)

// peerTitles are the peers of the report in words.
var peerTitles = map[string]string{
	subject.Direct: "no plugin", subject.Reference: "upstream, iptables", subject.ReferenceNftables: "upstream, nftables",
	subject.Sluice: "Sluice, eBPF", subject.SluiceAgain: "Sluice, eBPF, again", subject.SluiceNftables: "Sluice, nftables",
}

// profile is how much is measured.
type profile struct {
	name string
	// pods, conns and rules are the places on the axes. All loads run with the first number of pods, a few with the others.
	pods, conns, rules []int
	// first and others are the rounds with the first number of pods and at all other places. Tools and streams have toolRounds with the
	// first number, and with fewer than two none with others.
	first, toolRounds, others int
	probe, tool               time.Duration
	// setUp is how long making the pods of one place may take, and budget how long the whole run.
	setUp, budget time.Duration
	flows         []int
}

func fullProfile() profile {
	return profile{
		name: "full", pods: []int{2, 250, 2000, 10000}, conns: []int{1, 1000, 10000, 100000}, rules: []int{10, 100, 1000, 5000},
		first: 8, toolRounds: 8, others: 5, probe: 400 * time.Millisecond, tool: time.Second, setUp: 150 * time.Second, budget: 26 * time.Minute, flows: []int{1, 32},
	}
}

func quickProfile() profile {
	return profile{
		name: "quick", pods: []int{2, 20}, conns: []int{1, 200}, rules: []int{10, 500},
		first: 8, toolRounds: 1, others: 2, probe: 50 * time.Millisecond, tool: time.Second, setUp: time.Minute, budget: 100 * time.Second, flows: []int{1, 32},
	}
}

// fullReport is one run of "bench report".
type fullReport struct {
	common
	profile
	out      string
	record   *record.File
	started  time.Time
	progress io.Writer
	took     map[string]pace // of the last pods of each peer
}

func runReport(ctx context.Context, args []string) (err error) {
	r := &fullReport{progress: io.Discard, profile: fullProfile(), took: map[string]pace{}}
	r.common.only = []string{subject.Direct, subject.Reference, subject.ReferenceNftables, subject.Sluice, subject.SluiceAgain, subject.SluiceNftables}
	f := flag.NewFlagSet("bench report", flag.ContinueOnError)
	r.register(f, strings.Join(r.common.only, ","))
	short := f.Bool("quick", false, "the small profile, at most two minutes: to see that it works, not to cite")
	pods := f.String("pods", "", "numbers of pods, such as 2,250: with the first one all loads run")
	f.StringVar(&r.out, "out", filepath.Join("bench", "out", "report.json"), "the raw data, JSON; the page is beside it, .html")
	budget := f.Duration("budget", 0, "how long the run may take (default: 26m, 100s with -quick)")
	setUp := f.Duration("setup", 0, "how long the pods of one peer may take, twice as long for 10,000 (default: 150s, 1m with -quick)")
	from := f.String("from", "", "measure nothing: draw the page of this JSON `file`, and -readme")
	readme := f.String("readme", "", "write the figures into this README, its pictures into docs/images beside it")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if *short {
		r.profile = quickProfile()
	}
	if *pods != "" {
		if r.profile.pods, err = parseInts(*pods); err != nil {
			return fmt.Errorf("-pods: %w", err)
		}
	}
	if *budget != 0 {
		r.budget = *budget
	}
	if *setUp != 0 {
		r.setUp = *setUp
	}
	if isTerminal(os.Stderr) {
		r.progress = os.Stderr
	}
	if *from != "" {
		if r.record, err = record.Read(*from); err != nil {
			return err
		}
		r.out = *from
	} else if err := r.run(ctx, args); err != nil {
		return err
	}
	return r.write(os.Stdout, *readme)
}

// run measures and writes the raw data.
func (r *fullReport) run(ctx context.Context, args []string) (err error) {
	r.started = time.Now()
	r.record = &record.File{
		Schema: record.Schema, Command: strings.TrimSpace("go run ./bench report " + strings.Join(args, " ")), Profile: r.name,
		Started: r.started.UTC().Format(time.RFC3339), Commit: commit(ctx), Versions: map[string]string{}, Commands: map[string]string{},
		Titles: map[string]string{}, Skipped: []record.Skipped{}, Control: []string{},
	}
	for _, name := range tool.Names() {
		version, err := tool.Version(ctx, name)
		if err != nil {
			return err
		}
		r.record.Versions[name] = version
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	r.describe(os.Stdout)
	r.record.Host, r.record.Peers = r.host, r.names()
	for name, version := range r.versions() {
		r.record.Versions[name] = version
	}
	for _, name := range r.record.Peers {
		r.record.Titles[name] = peerTitles[name]
	}
	r.setBase()
	if err := r.measure(ctx); err != nil {
		return err
	}
	r.record.Seconds, r.record.LoadAfter = time.Since(r.started).Seconds(), report.ThisHost().Load
	return r.record.Write(r.out)
}

// setBase says what ratios are to, and which peers are the same.
func (r *fullReport) setBase() {
	has := map[string]bool{}
	for _, p := range r.record.Peers {
		has[p] = true
	}
	r.record.Base = r.record.Peers[0]
	if has[subject.Direct] {
		r.record.Base = subject.Direct
	}
	if has[subject.Sluice] && has[subject.SluiceAgain] {
		r.record.Control = []string{subject.Sluice, subject.SluiceAgain}
	}
}

// errControl is the answer of a control whose equals differ.
var errControl = errors.New("the control failed: the same subject measured twice differs")

// write draws what there is of the record.
func (r *fullReport) write(w io.Writer, readme string) error {
	html, err := page.HTML(r.record)
	if err != nil {
		return err
	}
	path := strings.TrimSuffix(r.out, ".json") + ".html"
	if err := os.WriteFile(path, html, 0o644); err != nil {
		return err
	}
	if readme != "" {
		if err := writeReadme(r.record, readme); err != nil {
			return fmt.Errorf("%s: %w", readme, err)
		}
	}
	control := page.Judge(r.record)
	fmt.Fprintf(w, "control: %s\n", control.Summary())
	for _, s := range r.record.Skipped {
		fmt.Fprintf(w, "not measured: %s %d, %s: %s\n", s.Axis, s.At, s.Peer, s.Reason)
	}
	fmt.Fprintf(w, "%s and %s written\n", r.out, path)
	if control.Different > 0 {
		return errControl
	}
	return nil
}

const readmeImages = "docs/images"

func writeReadme(f *record.File, path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	table, pictures, err := page.Readme(f, readmeImages)
	if err != nil {
		return err
	}
	text, err := page.Replace(string(old), table)
	if err != nil {
		return err
	}
	for name, svg := range pictures {
		file := filepath.Join(filepath.Dir(path), name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// commit names the source, "unknown" without git.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
