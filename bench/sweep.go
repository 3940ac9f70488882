// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/bench/tool"
)

// measure goes along the axes. The worlds of a number of pods exist at once and are closed before the next number's are made.
// The other axes are walked with the first number of pods.
func (r *fullReport) measure(ctx context.Context) error {
	for i, n := range r.pods {
		worlds, err := r.build(ctx, n)
		if err == nil {
			err = r.atPods(ctx, worlds, n, i == 0)
		}
		for _, w := range worlds {
			err = errors.Join(err, w.Close())
		}
		if err != nil {
			return err
		}
	}
	r.say("")
	return nil
}

// build makes the worlds of a number of pods. A peer whose pods take too long is left out by name.
func (r *fullReport) build(ctx context.Context, pods int) (worlds []*subject.World, err error) {
	for _, s := range r.suites {
		if s.Name == subject.SluiceAgain && pods != r.pods[0] {
			continue // one place is enough for the control
		}
		if why := cmp.Or(r.late(), r.tooSlow(s.Name, pods)); why != "" {
			r.record.LeaveOut(record.AxisPods, pods, s.Name, why)
			continue
		}
		conns := 0
		if pods == r.pods[0] { // where the axis of connections is
			conns = slices.Max(r.conns)
		}
		w, err := subject.Build(ctx, subject.Options{
			Suite: s, Pods: pods, Conns: conns, Masquerade: r.masquerade, Stateful: r.stateful, LastPod: r.lastPod, Tools: true, IPv4Only: true,
			Parallel: runtime.NumCPU(), Until: time.Now().Add(r.setUpOf(pods)),
		}, func(done int) { r.say("attaching through %s: %d of %d", s.Name, done, pods) })
		if errors.Is(err, subject.ErrTime) {
			r.record.LeaveOut(record.AxisPods, pods, s.Name, err.Error())
			r.took[s.Name] = pace{pods, r.setUpOf(pods)}
			continue
		}
		if err != nil {
			return worlds, err
		}
		r.took[s.Name] = pace{pods, w.SetUp}
		worlds = append(worlds, w)
	}
	return worlds, nil
}

// pace is how long so many pods took, or after how long they were given up.
type pace struct {
	pods int
	time time.Duration
}

// enough is how many pods say how long more of them take at least: the first ones load programs.
const enough = 100

// tooSlow says that the pods would take longer than they may, by what fewer of them took. A pod takes no less time than one before it.
func (r *fullReport) tooSlow(peer string, pods int) string {
	was := r.took[peer]
	few := was.pods < enough && was.time < r.setUpOf(was.pods)
	if few || was.time*time.Duration(pods)/time.Duration(was.pods) <= r.setUpOf(pods) {
		return ""
	}
	return fmt.Sprintf("%d pods took %v or more already", was.pods, was.time.Round(time.Second))
}

// setUpOf is how long the pods of one peer may take: twice as long from 10,000 on.
func (r *fullReport) setUpOf(pods int) time.Duration {
	return r.setUp * time.Duration(max(1, pods/5000))
}

// late says that the run has no time left for another place.
func (r *fullReport) late() string {
	if took := time.Since(r.started); took > r.budget {
		return fmt.Sprintf("the budget of %v was used up", r.budget)
	}
	return ""
}

// atPods measures with a number of pods; with the first one all that there is.
func (r *fullReport) atPods(ctx context.Context, worlds []*subject.World, n int, first bool) error {
	if len(worlds) == 0 {
		return nil
	}
	if !first {
		few := append(r.probes(record.AxisPods, true), verbs()...)
		if r.toolRounds > 1 {
			few = append(few, r.tools(record.AxisPods, true)...)
		}
		return r.rounds(ctx, worlds, n, r.others, few)
	}
	if err := r.rounds(ctx, worlds, n, r.first, append(r.probes(record.AxisPods, false), verbs()...)); err != nil {
		return err
	}
	if err := r.rounds(ctx, worlds, n, r.toolRounds, append(r.streams(record.AxisPods), r.tools(record.AxisPods, false)...)); err != nil {
		return err
	}
	worlds = slices.DeleteFunc(slices.Clone(worlds), func(w *subject.World) bool { return w.Suite.Name == subject.SluiceAgain })
	if err := r.byConnections(ctx, worlds); err != nil {
		return err
	}
	return r.byRules(ctx, worlds)
}

func (r *fullReport) byConnections(ctx context.Context, worlds []*subject.World) error {
	for _, n := range r.conns {
		able := slices.Clone(worlds)
		for _, w := range worlds {
			r.say("opening %d connections through %s", n, w.Suite.Name)
			if err := w.Hold(n); err != nil {
				r.record.LeaveOut(record.AxisConnections, n, w.Suite.Name, err.Error())
				able = slices.DeleteFunc(able, func(o *subject.World) bool { return o == w })
			}
		}
		if err := r.rounds(ctx, able, n, r.others, r.probes(record.AxisConnections, true)); err != nil {
			return err
		}
	}
	var errs []error
	for _, w := range worlds {
		_, err := w.Release()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (r *fullReport) byRules(ctx context.Context, worlds []*subject.World) error {
	for _, n := range r.rules {
		for _, w := range worlds {
			if err := w.SetRules(n); err != nil {
				return fmt.Errorf("%s: %w", w.Suite.Name, err)
			}
		}
		if err := r.rounds(ctx, worlds, n, r.others, r.probes(record.AxisRules, true)); err != nil {
			return err
		}
	}
	return nil
}

// work measures one load of one world once.
type work struct {
	load record.Load
	do   func(ctx context.Context, w *subject.World) (map[string]float64, error)
}

// rounds takes every work of every world so many times. All worlds have their turn at one work before the next comes, so that figures to
// be compared are seconds apart; the first peer of one round is the last of the next.
func (r *fullReport) rounds(ctx context.Context, worlds []*subject.World, at, rounds int, all []work) error {
	for round := range rounds {
		if why := r.late(); why != "" && round >= minRounds {
			for _, w := range worlds {
				r.record.LeaveOut(all[0].load.Axis, at, w.Suite.Name, fmt.Sprintf("%d of %d rounds: %s", rounds-round, rounds, why))
			}
			return nil
		}
		turn := slices.Clone(worlds)
		if round%2 == 1 {
			slices.Reverse(turn)
		}
		for _, job := range all {
			for _, w := range turn {
				r.say("%s=%d, round %d of %d, %s/%s/%d: %s", job.load.Axis, at, round+1, rounds, job.load.Tool, job.load.Shape, job.load.Flows, w.Suite.Name)
				if err := r.one(ctx, job, w, at); err != nil {
					return fmt.Errorf("%s, %s=%d, %s %s, %d flows: %w", w.Suite.Name, job.load.Axis, at, job.load.Tool, job.load.Shape, job.load.Flows, err)
				}
			}
		}
	}
	return nil
}

func (r *fullReport) one(ctx context.Context, job work, w *subject.World, at int) error {
	before, err := report.QueueDrops()
	if err != nil {
		return err
	}
	values, err := job.do(ctx, w)
	if err != nil {
		return err
	}
	after, err := report.QueueDrops()
	if err != nil {
		return err
	}
	if after > before && job.load.Shape != record.ShapeStream {
		r.record.Disturbed++
	}
	for metric, value := range values {
		r.record.Add(job.load.Key(at, w.Suite.Name, metric), value)
	}
	return ctx.Err()
}

// probes are round trips and connections of our own processes. few has one of each.
func (r *fullReport) probes(axis string, few bool) (all []work) {
	for _, shape := range []string{record.ShapeRR, record.ShapeCRR} {
		for _, flows := range r.flows {
			if !few || (shape == record.ShapeRR) == (flows == 1) {
				all = append(all, r.probeOf(axis, shape, flows))
			}
		}
	}
	return all
}

// streams are those of our own processes.
func (r *fullReport) streams(axis string) (all []work) {
	for _, flows := range r.flows {
		all = append(all, r.probeOf(axis, record.ShapeStream, flows))
	}
	return all
}

// minStream is how long bytes count at least: on a busy machine the server may not run for so long.
const minStream = 400 * time.Millisecond

func (r *fullReport) probeOf(axis, shape string, flows int) work {
	d := r.probe
	if shape == record.ShapeStream {
		d = max(d, minStream)
	}
	r.command(record.Probe, shape, flows, fmt.Sprintf("bench/traffic: %s, %d connections, %v", shape, flows, d))
	return work{record.Load{Axis: axis, Tool: record.Probe, Shape: shape, Flows: flows}, func(_ context.Context, w *subject.World) (map[string]float64, error) {
		got, cpu, err := w.Measure(subject.Load{Op: shape, Flows: flows, For: d})
		return figures(shape, tool.Result{Rate: got.Rate, P50: got.P50, P99: got.P99, P999: got.P999, Count: float64(got.Count), CPU: cpu}, err)
	}}
}

// figures are the metrics of a result.
func figures(shape string, r tool.Result, err error) (map[string]float64, error) {
	if err != nil {
		return nil, err
	}
	if r.Count <= 0 {
		return nil, errors.New("nothing was counted")
	}
	if shape == record.ShapeStream {
		const kib = 1024
		return map[string]float64{record.Rate: r.Rate / 1e9, record.CPU: float64(r.CPU) / (r.Count / kib)}, nil
	}
	return map[string]float64{
		record.Rate: r.Rate, record.P50: micros(r.P50), record.P99: micros(r.P99), record.P999: micros(r.P999), record.CPU: micros(r.CPU) / r.Count,
	}, nil
}

// tools are the programs that people know. few has one load of each shape.
func (r *fullReport) tools(axis string, few bool) (all []work) {
	add := func(name, shape string, flows int, line []string, do func(context.Context, *subject.World) (tool.Result, error)) {
		r.command(name, shape, flows, strings.Join(line, " "))
		all = append(all, work{record.Load{Axis: axis, Tool: name, Shape: shape, Flows: flows}, func(ctx context.Context, w *subject.World) (map[string]float64, error) {
			got, err := do(ctx, w)
			return figures(shape, got, err)
		}})
	}
	node := subject.NodeAddr
	r.record.Commands["wrk/report.lua"] = tool.WrkScript
	for _, flows := range r.flows {
		if !few || flows == 1 {
			add(tool.Iperf3, record.ShapeStream, flows, tool.Iperf3Line(node(subject.Iperf3Port), flows, r.tool), func(ctx context.Context, w *subject.World) (tool.Result, error) {
				return w.WithTool(subject.Iperf3Port, func(e tool.Ends) (tool.Result, error) { return tool.RunIperf3(ctx, e, flows, r.tool) })
			})
		}
		for shape, again := range map[string]bool{record.ShapeRR: false, record.ShapeCRR: true} {
			if few && (flows == 1) == again { // one connection that stays, and many new ones
				continue
			}
			add(tool.Wrk, shape, flows, tool.WrkLine(node(subject.FirstHostPort), flows, again, r.tool, "report.lua"), func(ctx context.Context, w *subject.World) (tool.Result, error) {
				return w.WithTool(0, func(e tool.Ends) (tool.Result, error) { return tool.RunWrk(ctx, e, flows, again, r.tool) })
			})
		}
	}
	add(tool.Sockperf, record.ShapeRR, 1, tool.SockperfLine(node(subject.SockperfPort), r.tool), func(ctx context.Context, w *subject.World) (tool.Result, error) {
		return w.WithTool(subject.SockperfPort, func(e tool.Ends) (tool.Result, error) { return tool.RunSockperf(ctx, e, r.tool) })
	})
	slices.SortStableFunc(all, func(a, b work) int {
		return strings.Compare(a.load.Tool+a.load.Shape, b.load.Tool+b.load.Shape)
	})
	return all
}

// verbs are ADD and DEL of one more pod, of the peers that have plugins.
func verbs() []work {
	pair := map[*subject.World]time.Duration{}
	load := func(shape string) record.Load {
		return record.Load{Axis: record.AxisPods, Tool: record.Libcni, Shape: shape, Flows: 1}
	}
	return []work{
		{load(record.ShapeAdd), func(ctx context.Context, w *subject.World) (map[string]float64, error) {
			if !w.HasChain() {
				return nil, nil
			}
			add, del, err := w.AddDel(ctx)
			pair[w] = del
			return map[string]float64{record.Median: millis(add)}, err
		}},
		{load(record.ShapeDel), func(_ context.Context, w *subject.World) (map[string]float64, error) {
			if !w.HasChain() {
				return nil, nil
			}
			return map[string]float64{record.Median: millis(pair[w])}, nil
		}},
	}
}

func (r *fullReport) command(name, shape string, flows int, line string) {
	r.record.Commands[fmt.Sprintf("%s/%s/%d", name, shape, flows)] = line
}

// say shows where the run is, on one line of a terminal; "" clears it.
func (r *fullReport) say(format string, args ...any) { sayTo(r.progress, format, args...) }
