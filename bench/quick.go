// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
)

// Scenarios of the report; the others are the kinds of traffic.
const (
	hostPort = string(subject.HostPort)
	attach   = "attach" // ADD and DEL of one more pod
)

// minRounds is measured whatever the budget: a median needs them.
const minRounds = 3

// quick is one run of the comparison.
type quick struct {
	common
	out  string
	kind subject.Kind
	// services is how many Services the node has rules for.
	services int
	pods     []int
	rounds   int
	// cycles is how many ADD/DEL pairs each world gets.
	cycles                   int
	rrFor, crrFor, streamFor time.Duration
	// budget is how long the run may take; rounds that no longer fit are left
	// out, but for the first minRounds.
	budget time.Duration

	worlds []*subject.World
	// disturbed counts measurements during which something else overran the
	// kernel's packet queues.
	disturbed int
	run       report.Run
	progress  io.Writer
}

func runQuick(ctx context.Context, args []string) (err error) {
	q := &quick{progress: io.Discard}
	f := flag.NewFlagSet("bench quick", flag.ContinueOnError)
	q.register(f, "direct,reference,sluice")
	pods := f.String("pods", "2,250", "pods with one hostPort each")
	kind := f.String("kind", hostPort, fmt.Sprintf("the `traffic`: one of %v", subject.Kinds()))
	f.IntVar(&q.services, "services", 10, "Services that the node has rules for, where the traffic is to one")
	f.StringVar(&q.out, "out", filepath.Join("bench", "out", "quick.json"), "JSON report")
	f.IntVar(&q.rounds, "rounds", 10, "rounds of traffic over all peers")
	f.IntVar(&q.cycles, "cycles", 15, "ADD/DEL pairs for each peer")
	f.DurationVar(&q.budget, "budget", 165*time.Second, "leave out rounds that would make the run longer than this")
	f.DurationVar(&q.rrFor, "rr", 300*time.Millisecond, "request/response time in a round")
	f.DurationVar(&q.crrFor, "crr", 500*time.Millisecond, "connection time in a round")
	f.DurationVar(&q.streamFor, "stream", 500*time.Millisecond, "stream time in a round")
	guest := f.String("guest", "", "do it in a virtual machine with this kernel `series` (6.12) instead, as sluice-netkit needs; -peers must name no reference")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if q.pods, err = parseInts(*pods); err != nil {
		return err
	}
	if q.kind = subject.Kind(*kind); !slices.Contains(subject.Kinds(), q.kind) {
		return fmt.Errorf("-kind %q: must be one of %v", *kind, subject.Kinds())
	}
	if *guest != "" {
		return quickInGuest(ctx, *guest, f, q.peers)
	}
	if isTerminal(os.Stderr) {
		q.progress = os.Stderr
	}
	defer func() { err = errors.Join(err, q.close()) }()
	if err := q.prepare(ctx); err != nil {
		return err
	}
	q.describe(os.Stdout)
	start := time.Now()
	if err := q.measure(ctx, start.Add(q.budget)); err != nil {
		return err
	}
	return q.write(os.Stdout, time.Since(start))
}

func (q *quick) measure(ctx context.Context, deadline time.Time) error {
	for _, n := range q.pods {
		for _, s := range q.suites {
			if err := q.build(ctx, s, n); err != nil {
				return err
			}
		}
	}
	// ADD and DEL come first: their number is fixed, and what time they leave
	// is for the rounds of traffic.
	for cycle := range q.cycles {
		q.say("ADD and DEL, %d of %d", cycle+1, q.cycles)
		for _, w := range q.worlds {
			if err := q.attach(ctx, w, cycle); err != nil {
				return err
			}
		}
	}
	for round := range q.rounds {
		start := time.Now()
		if err := q.round(ctx, round); err != nil {
			return err
		}
		if round+1 >= minRounds && round+1 < q.rounds && time.Now().Add(time.Since(start)).After(deadline) {
			fmt.Printf("stopped after %d of %d rounds: the time is up\n", round+1, q.rounds)
			q.rounds = round + 1
			break
		}
	}
	q.say("")
	return nil
}

// round takes every metric of every world once. All worlds have their turn at
// one metric before the next comes, so that figures to be compared are seconds
// apart; the first peer of one round is the last of the next.
func (q *quick) round(ctx context.Context, round int) error {
	worlds := slices.Clone(q.worlds)
	if round%2 == 1 {
		slices.Reverse(worlds)
	}
	for _, m := range []struct {
		name    string
		measure func(*subject.World) error
	}{{"round trips", q.roundTrips}, {"connections", q.connections}, {"stream", q.stream}} {
		for _, w := range worlds {
			q.say("round %d of %d, %s: %s with %d pods", round+1, q.rounds, m.name, w.Suite.Name, w.Pods)
			if err := m.measure(w); err != nil {
				return fmt.Errorf("%s, %d pods: %w", w.Suite.Name, w.Pods, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *quick) build(ctx context.Context, s subject.Suite, pods int) error {
	w, err := subject.Build(ctx, subject.Options{Suite: s, Pods: pods, Masquerade: q.masquerade, Stateful: q.stateful, LastPod: q.lastPod, Kind: q.kind, Services: q.services}, func(done int) {
		q.say("attaching through %s: %d of %d", s.Name, done, pods)
	})
	if err != nil {
		return err
	}
	q.cleanup = append(q.cleanup, w.Close)
	q.worlds = append(q.worlds, w)
	if w.HasChain() {
		q.say("")
		fmt.Printf("%s: %d pods with one hostPort each attached in %.1f s\n", s.Name, pods, w.SetUp.Seconds())
	}
	return nil
}

func (q *quick) roundTrips(w *subject.World) error {
	before, err := report.QueueDrops()
	if err != nil {
		return err
	}
	r, cpu, err := w.Measure(subject.Load{Op: "rr", Flows: 1, For: q.rrFor})
	if err != nil {
		return err
	}
	if err := q.noteDrops(before); err != nil {
		return err
	}
	q.run.Add(string(q.kind), w.Suite.Name, w.Pods, report.RRP50, micros(r.P50))
	q.run.Add(string(q.kind), w.Suite.Name, w.Pods, report.RRP99, micros(r.P99))
	q.run.Add(string(q.kind), w.Suite.Name, w.Pods, report.RRCPU, micros(cpu)/float64(r.Count))
	return nil
}

func (q *quick) connections(w *subject.World) error {
	before, err := report.QueueDrops()
	if err != nil {
		return err
	}
	rate, err := w.CRR(q.crrFor)
	if err != nil {
		return err
	}
	if err := q.noteDrops(before); err != nil {
		return err
	}
	q.run.Add(string(q.kind), w.Suite.Name, w.Pods, report.CRR, rate)
	return nil
}

// noteDrops compares with what QueueDrops said before a measurement.
func (q *quick) noteDrops(before uint64) error {
	after, err := report.QueueDrops()
	if after > before {
		q.disturbed++
	}
	return err
}

func (q *quick) stream(w *subject.World) error {
	rate, err := w.Stream(q.streamFor)
	if err != nil {
		return err
	}
	q.run.Add(string(q.kind), w.Suite.Name, w.Pods, report.Stream, rate/1e9)
	return nil
}

func (q *quick) attach(ctx context.Context, w *subject.World, cycle int) error {
	if !w.HasChain() {
		return nil
	}
	add, del, err := w.AddDel(ctx)
	if err != nil {
		return err
	}
	if cycle == 0 && q.cycles > 1 {
		return nil // pages of the binaries, first use of the pod
	}
	q.run.Add(attach, w.Suite.Name, w.Pods, report.Add, float64(add)/1e6)
	q.run.Add(attach, w.Suite.Name, w.Pods, report.Del, float64(del)/1e6)
	return ctx.Err()
}

func (q *quick) write(w io.Writer, took time.Duration) error {
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	sections := q.sections()
	for _, s := range sections {
		if err := q.run.WriteTable(w, s, q.names(), subject.Direct, style); err != nil {
			return err
		}
	}
	if q.kind == subject.HostPort {
		if _, err := q.run.WriteGoals(w, goals(q.pods), style); err != nil {
			return err
		}
	}
	if q.disturbed > 0 {
		fmt.Fprintf(w, "\nother traffic overran the kernel's packet queues during %d measurements of RR and CRR (250 idle pods on one\nbridge do that when they send IPv6 multicast): their smallest and largest values are its work\n", q.disturbed)
	}
	if err := report.WriteJSON(q.out, q.run.Rows(sections, q.names(), subject.Direct)); err != nil {
		return err
	}
	rounds := strings.TrimSuffix(q.out, ".json") + "-rounds.json"
	if err := report.WriteJSON(rounds, map[string]any{"host": q.host, "versions": q.versions(), "cells": q.run.Cells()}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s and %s written; %.0f s\n", q.out, filepath.Base(rounds), took.Seconds())
	return err
}

func (q *quick) sections() []report.Section {
	where := "the middle one"
	if q.lastPod {
		where = "the last one"
	}
	var sections []report.Section
	for _, n := range q.pods {
		sections = append(sections, report.Section{
			Scenario: string(q.kind), Pods: n, Metrics: report.Traffic,
			Title: fmt.Sprintf("%s, %d pods with a hostPort each, traffic of %s: median of %d rounds, ratio to direct in the same round", q.kind, n, where, q.rounds),
		})
	}
	for _, n := range q.pods {
		sections = append(sections, report.Section{
			Scenario: attach, Pods: n, Metrics: report.Attachment,
			Title: fmt.Sprintf("one more pod on a node with %d, bridge + host-local + portmap + firewall: median of %d", n, max(1, q.cycles-1)),
		})
	}
	return sections
}

// goals are Sluice's targets for the numbers of pods measured.
func goals(pods []int) []report.Goal {
	cell := func(scenario string, n int, m report.Metric) report.Key {
		return report.Key{Scenario: scenario, Peer: subject.Sluice, Pods: n, Metric: m.Name}
	}
	observed := func(n int, m report.Metric) report.Key {
		return report.Key{Scenario: hostPort, Peer: subject.SluiceObserved, Pods: n, Metric: m.Name}
	}
	var goals []report.Goal
	for _, n := range pods {
		goals = append(goals,
			report.Goal{Text: fmt.Sprintf("RR p50 <= 1.15x direct, %d pods", n), Key: cell(hostPort, n, report.RRP50), Base: subject.Direct, Max: 1.15},
			report.Goal{Text: fmt.Sprintf("CRR >= 0.90x direct, %d pods", n), Key: cell(hostPort, n, report.CRR), Base: subject.Direct, Min: 0.90},
			report.Goal{Text: fmt.Sprintf("stream >= 0.95x direct, %d pods", n), Key: cell(hostPort, n, report.Stream), Base: subject.Direct, Min: 0.95},
			report.Goal{Text: fmt.Sprintf("observed CRR >= 0.97x not observed, %d pods", n), Key: observed(n, report.CRR), Base: subject.Sluice, Min: 0.97},
			report.Goal{Text: fmt.Sprintf("observed stream >= 0.97x not observed, %d pods", n), Key: observed(n, report.Stream), Base: subject.Sluice, Min: 0.97},
			report.Goal{Text: fmt.Sprintf("ADD <= 25 ms, %d pods", n), Key: cell(attach, n, report.Add), Max: 25},
			report.Goal{Text: fmt.Sprintf("DEL <= 40 ms, %d pods", n), Key: cell(attach, n, report.Del), Max: 40})
	}
	if len(pods) > 1 {
		few, many := pods[0], pods[len(pods)-1]
		of := cell(hostPort, few, report.RRP50)
		goals = append(goals, report.Goal{
			Text: fmt.Sprintf("RR p50 with %d pods over that with %d, within 5 %%", many, few),
			Key:  cell(hostPort, many, report.RRP50), Of: &of, Min: 0.95, Max: 1.05,
		})
	}
	return goals
}

// say shows where the run is, on one line of a terminal; "" clears it.
func (q *quick) say(format string, args ...any) { sayTo(q.progress, format, args...) }

func sayTo(w io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(w, "\r%s\r%s", strings.Repeat(" ", 78), text)
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
