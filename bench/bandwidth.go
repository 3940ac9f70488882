// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/shaping"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/vmtest"
)

// bandwidth are the flags of that command.
type bandwidth struct {
	backends, rates   string
	refBin, sluiceBin string
	duration          time.Duration
	kernel            string
	tries             int
	asJSON            bool
}

// What a limit counts are frames, what a stream brings is payload: with IPv4 and TCP timestamps 1448 of 1514 bytes. That is all
// that a perfect limit lets through.
const possible = 1448. / 1514

// runBandwidth compares backends and the upstream plugin at each rate. It runs
// wherever there is ip: the binary, sluice-cni and upstream's bandwidth are
// all it needs, so that they can be copied to a machine with another kernel,
// which is what -kernel does.
func runBandwidth(ctx context.Context, args []string) error {
	var b bandwidth
	f := flag.NewFlagSet("bandwidth", flag.ContinueOnError)
	f.StringVar(&b.backends, "peers", "", "what to compare: edt, tbf, reference, none (default: the first three; no edt where the kernel has no sch_fq)")
	f.StringVar(&b.rates, "rates", "1,10,100,1000", "Mbit/s, separated by commas")
	f.StringVar(&b.refBin, "reference-bin", "", "directory with the reference plugins (default: built once into the user's cache)")
	f.StringVar(&b.sluiceBin, "sluice-bin", "bin", "directory with sluice-cni")
	f.DurationVar(&b.duration, "d", 3*time.Second, "load of each direction, twice that below 10 Mbit/s")
	f.IntVar(&b.tries, "tries", 3, "measure again while a stream falls short of its limit by more than 5 %, at most so often in all")
	f.StringVar(&b.kernel, "kernel", "", "run in a virtual machine with this kernel, as of test/vm: 6.12")
	f.BoolVar(&b.asJSON, "json", false, "print results as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if b.kernel != "" {
		return b.elsewhere(ctx)
	}
	if b.backends == "" {
		b.backends = "edt,tbf,reference"
		if err := rtnl.ProbeQdisc(rtnl.Qdisc{Kind: rtnl.QdiscFQ, Parent: rtnl.ParentRoot, FQ: &rtnl.FQ{}}); err != nil {
			fmt.Fprintln(os.Stderr, "without edt, the kernel has no sch_fq:", err)
			b.backends = "tbf,reference"
		}
	}
	peers, err := b.peers(ctx)
	if err != nil {
		return err
	}
	results, err := b.measure(ctx, peers)
	if err != nil {
		return err
	}
	if b.asJSON {
		return json.NewEncoder(os.Stdout).Encode(results)
	}
	fmt.Println(report.ThisHost())
	printShaping(os.Stdout, results)
	return printShapingGoals(os.Stdout, results)
}

// elsewhere runs the same in a virtual machine.
func (b *bandwidth) elsewhere(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ours, err := filepath.Abs(filepath.Join(b.sluiceBin, install.Multicall))
	if err != nil {
		return err
	}
	reference, err := subject.ReferencePlugin(ctx, b.refBin, "bandwidth")
	if err != nil {
		return err
	}
	// The machine has plugins of ours under all names already.
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files := []string{ours}
	for name, from := range map[string]string{"bench": self, "reference-bandwidth": reference} {
		files = append(files, filepath.Join(dir, name))
		if err := os.Symlink(from, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	line := fmt.Sprintf("mkdir /tmp/r && cp /sluice/bin/reference-bandwidth /tmp/r/bandwidth && bench bandwidth -rates %s -d %v -tries %d -sluice-bin /sluice/bin -reference-bin /tmp/r", b.rates, b.duration, b.tries)
	if b.backends != "" {
		line += " -peers " + b.backends
	}
	if b.asJSON {
		line += " -json"
	}
	return vmtest.Run(ctx, "-kernels", b.kernel, "-with", strings.Join(files, ","), "-exec", line)
}

func (b *bandwidth) peers(ctx context.Context) ([]shaping.Peer, error) {
	ours, err := filepath.Abs(filepath.Join(b.sluiceBin, install.Multicall))
	if err != nil {
		return nil, err
	}
	var out []shaping.Peer
	for name := range strings.SplitSeq(b.backends, ",") {
		switch name {
		case "none":
			out = append(out, shaping.Peer{Name: name})
		case "edt", "tbf":
			out = append(out, shaping.Peer{Name: name, Plugin: ours, Keys: map[string]any{"backend": name}})
		case subject.Reference:
			path, err := subject.ReferencePlugin(ctx, b.refBin, "bandwidth")
			if err != nil {
				return nil, err
			}
			out = append(out, shaping.Peer{Name: name, Plugin: path})
		default:
			return nil, fmt.Errorf("unknown peer %q: edt, tbf, %s or none", name, subject.Reference)
		}
	}
	return out, nil
}

func (b *bandwidth) measure(ctx context.Context, peers []shaping.Peer) (results []shaping.Result, err error) {
	w, err := shaping.NewWorld()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for text := range strings.SplitSeq(b.rates, ",") {
		mbit, err := strconv.ParseUint(text, 10, 32)
		if err != nil || mbit == 0 {
			return nil, fmt.Errorf("rate %q: not a number of Mbit/s", text)
		}
		for _, p := range peers {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			d := b.duration
			if mbit < 10 {
				d *= 2 // a packet lost is a tenth of what arrives in a second
			}
			r, err := b.best(w, p, mbit*1e6, d)
			if err != nil {
				return nil, fmt.Errorf("%s at %d Mbit/s: %w", p.Name, mbit, err)
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// direction is one of a result's.
type direction struct {
	name string
	f    shaping.Figures
}

func directions(r shaping.Result) []direction {
	return []direction{{"ingress", r.Ingress}, {"egress", r.Egress}}
}

// short is when a stream falls behind its limit: by more than 5 %.
func short(f shaping.Figures) bool { return f.Efficient < 0.95*possible }

// best measures a peer, and again while a direction falls short: a limit lets through as much as it does whatever else runs, but a
// stream whose processes wait for a CPU does not use it. The same for all peers.
func (b *bandwidth) best(w *shaping.World, p shaping.Peer, rate uint64, d time.Duration) (shaping.Result, error) {
	r, err := w.Measure(p, rate, d)
	for try := 1; err == nil && try < b.tries && (short(r.Ingress) || short(r.Egress)); try++ {
		var again shaping.Result
		again, err = w.Measure(p, rate, d)
		if again.Ingress.Goodput > r.Ingress.Goodput && short(r.Ingress) {
			r.Ingress = again.Ingress
		}
		if again.Egress.Goodput > r.Egress.Goodput && short(r.Egress) {
			r.Egress = again.Egress
		}
	}
	return r, err
}

func printShaping(w io.Writer, results []shaping.Result) {
	fmt.Fprintf(w, "goodput: payload of one TCP stream after the burst; of the rate; of what a perfect limit lets through (%.1f %% of the rate, headers take the rest)\n", 100*possible)
	fmt.Fprintf(w, "%-10s %9s  %-8s %10s %8s %8s %12s %12s %12s %5s\n",
		"peer", "Mbit/s", "", "goodput", "of rate", "of poss.", "echo idle", "loaded p50", "p99", "lost")
	for _, r := range results {
		for _, d := range directions(r) {
			fmt.Fprintf(w, "%-10s %9d  %-8s %10.2f %7.1f%% %7.1f%% %12v %12v %12v %5d\n", r.Peer, r.Rate/1e6, d.name, d.f.Goodput, 100*d.f.Efficient, 100*d.f.Efficient/possible,
				d.f.IdleP50.Round(time.Microsecond), d.f.P50.Round(time.Microsecond), d.f.P99.Round(time.Microsecond), d.f.Lost)
		}
	}
}

// Scenarios of the goals.
const bandwidthGoal = "bandwidth"

// printShapingGoals compares with what Sluice is to reach: goodput within 5 % of what is possible, by either backend, and with edt
// an echo beside it that takes no longer than beside upstream's.
func printShapingGoals(w io.Writer, results []shaping.Result) error {
	var run report.Run
	var goals []report.Goal
	goodput, p99 := report.Metric{Name: "goodput"}, report.Metric{Name: "p99"}
	for _, r := range results {
		rate := int(r.Rate / 1e6)
		for _, d := range directions(r) {
			scenario := bandwidthGoal + " " + d.name
			run.Add(scenario, r.Peer, rate, goodput, d.f.Efficient/possible)
			run.Add(scenario, r.Peer, rate, p99, micros(d.f.P99))
			key := report.Key{Scenario: scenario, Peer: r.Peer, Pods: rate, Metric: goodput.Name}
			what := fmt.Sprintf("%s, %d Mbit/s, %s", r.Peer, rate, d.name)
			if r.Peer == "edt" || r.Peer == "tbf" {
				goals = append(goals, report.Goal{Text: "goodput within 5 % of the possible: " + what, Key: key, Min: 0.95, Max: 1.05})
			}
			if r.Peer == "edt" {
				of := key
				key.Metric, of.Metric, of.Peer = p99.Name, p99.Name, subject.Reference
				goals = append(goals, report.Goal{Text: "p99 of an echo beside it <= the reference's: " + what, Key: key, Of: &of, Max: 1})
			}
		}
	}
	_, err := run.WriteGoals(w, goals, report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""})
	return err
}
