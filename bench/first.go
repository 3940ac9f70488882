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
	"slices"
	"time"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// firstAdds is one run of "bench first-add".
type firstAdds struct {
	adds
	rounds int
	loaded bool // by "sluice resync --load", before the first ADD

	load, first, second [][]call // of each round
}

// runFirstAdd measures the first ADD of a node, which loads the programs, and the one after it. Each round has a node of its own, with
// its own bpffs: for the plugins it has just booted.
func runFirstAdd(ctx context.Context, args []string) (err error) {
	b := &firstAdds{adds: adds{common: common{only: []string{subject.Sluice}}}}
	f := flag.NewFlagSet("bench first-add", flag.ContinueOnError)
	b.register(f, subject.Sluice)
	f.IntVar(&b.rounds, "rounds", 9, "nodes")
	f.BoolVar(&b.loaded, "loaded", false, `load the programs by "sluice resync --load" before the first ADD`)
	name := f.String("plugin", onBridge, "plugin or chain to time")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	todo, err := choose(*name)
	if err != nil {
		return err
	}
	if len(todo) != 1 || b.rounds < 1 {
		return errors.New("one -plugin and at least one of -rounds")
	}
	b.plugins = append(todo[0].types(), "host-local")
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	b.describe(os.Stdout)
	for range b.rounds {
		if err := b.round(ctx, todo[0]); err != nil {
			return err
		}
	}
	return b.print(os.Stdout, todo[0].types())
}

// round boots a node and attaches two pods.
func (b *firstAdds) round(ctx context.Context, i interfacePlugin) (err error) {
	p, err := b.build(ctx, b.suites[0], i, 1)
	if p != nil {
		defer func() { err = errors.Join(err, p.lab.Close()) }()
	}
	if err != nil {
		return err
	}
	if b.loaded {
		c, err := b.loadPrograms(p)
		if err != nil {
			return err
		}
		b.load = append(b.load, []call{c})
	}
	for n, into := range []*[][]call{&b.first, &b.second} {
		calls, err := p.add(ctx, i, n)
		if err != nil {
			return err
		}
		*into = append(*into, calls)
	}
	return ctx.Err()
}

// loadPrograms runs "sluice resync --load" on the node.
func (b *firstAdds) loadPrograms(p *place) (c call, err error) {
	tool, err := b.operatorTool()
	if err != nil {
		return call{}, err
	}
	err = p.lab.Node.Do(func() error {
		cmd := exec.Command(tool, "resync", "--load")
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		c.ended(start, cmd.ProcessState)
		return nil
	})
	return c, err
}

// add attaches pod n, which stays, and returns what its processes cost.
func (p *place) add(ctx context.Context, i interfacePlugin, n int) ([]call, error) {
	name := fmt.Sprintf("pod%d", n)
	pod, err := p.lab.Node.NewPod(name)
	if err != nil {
		return nil, err
	}
	defer pod.Close() // its path keeps it
	att := netlab.Attachment{ContainerID: name, NetNS: pod.Path}
	if i.chained != nil {
		att.Capabilities = map[string]any{"portMappings": []object{{"hostPort": 8080 + n, "containerPort": 80, "protocol": "tcp"}}}
	}
	p.timer.take()
	if _, err := p.runtime.Add(ctx, att); err != nil {
		return nil, fmt.Errorf("ADD: %w", err)
	}
	return p.timer.take(), nil
}

// print writes medians. The load is what the first ADD takes more than the second one, within each round.
func (b *firstAdds) print(w io.Writer, plugins []string) error {
	fmt.Fprintf(w, "\nADD on a node %s programs, median of %d nodes, ms. CPU time includes the helper's, on all CPUs\n", map[bool]string{true: "with", false: "without"}[b.loaded], b.rounds)
	fmt.Fprintf(w, "  %-10s %28s %28s\n", "", "first ADD", "second ADD")
	fmt.Fprintf(w, "  %-10s %8s %9s %9s %8s %9s %9s\n", "", "wall", "user", "system", "wall", "user", "system")
	for _, name := range append(slices.Clone(plugins), "") {
		first, second := median(b.first, name), median(b.second, name)
		if name == "" {
			name = "all"
		}
		fmt.Fprintf(w, "  %-10s %8.1f %9.1f %9.1f %8.1f %9.1f %9.1f\n", name,
			millis(first.wall), millis(first.user), millis(first.sys), millis(second.wall), millis(second.user), millis(second.sys))
	}
	if b.loaded {
		l := median(b.load, "")
		_, err := fmt.Fprintf(w, "sluice resync --load, before it: wall %.1f, user %.1f, system %.1f\n", millis(l.wall), millis(l.user), millis(l.sys))
		return err
	}
	var load [][]call
	for n := range b.first {
		f, s := total(b.first[n], ""), total(b.second[n], "")
		load = append(load, []call{{wall: f.wall - s.wall, user: f.user - s.user, sys: f.sys - s.sys}})
	}
	l := median(load, "")
	_, err := fmt.Fprintf(w, "  %-10s %8.1f %9.1f %9.1f\n", "(load)", millis(l.wall), millis(l.user), millis(l.sys))
	return err
}

// total sums the calls of a plugin, of all with an empty name.
func total(calls []call, plugin string) (sum call) {
	for _, c := range calls {
		if plugin == "" || c.plugin == plugin {
			sum.wall += c.wall
			sum.user += c.user
			sum.sys += c.sys
		}
	}
	return sum
}

// median takes the median of each column over the rounds.
func median(rounds [][]call, plugin string) call {
	var wall, user, sys []time.Duration
	for _, calls := range rounds {
		c := total(calls, plugin)
		wall, user, sys = append(wall, c.wall), append(user, c.user), append(sys, c.sys)
	}
	return call{plugin: plugin, wall: middle(wall), user: middle(user), sys: middle(sys)}
}
