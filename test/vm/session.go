// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-cni/sluice/test/vm/qemu"
	"github.com/sluice-cni/sluice/test/vm/result"
	"github.com/sluice-cni/sluice/test/vm/unit"
)

// machineSeconds is how long a machine's tests take by its own clock, about: long
// beside its boot, short beside the matrix, so that the last machines end together.
const machineSeconds = 150

// session runs what is missing in a store.
type session struct {
	*work
	store *unit.Store
	boot  bootFunc
	mu    sync.Mutex // of what is printed, and of finished
}

// bootFunc boots a machine with units, and calls ended for each that ended, in
// order, with its report and what the console said.
type bootFunc func(ctx context.Context, k kernel, name string, units []unit.Unit, ended func(i int, report string, trouble []string)) (*booted, error)

// booted is a machine that is off again.
type booted struct {
	*qemu.Outcome
	// rest is the report of a unit that did not end, trouble what the console said
	// after the last that did.
	rest    string
	trouble []string
}

// job is what one machine runs.
type job struct {
	of    *finished
	name  string
	units []unit.Unit
}

// runAll runs the units of all kernels that have no good result yet, unless the
// options forbid it, and returns what is then known.
func (s *session) runAll(ctx context.Context, kernels []kernel) ([]*finished, error) {
	var jobs []job
	units := make([][]unit.Unit, len(kernels))
	all := make([]*finished, len(kernels))
	for i, k := range kernels {
		var err error
		if units[i], err = s.units(k); err != nil {
			return nil, err
		}
		all[i] = &finished{kernel: k, units: len(units[i])}
		if !s.again {
			todo := s.todo(k, units[i])
			all[i].kept = len(units[i]) - len(todo)
			jobs = append(jobs, s.divide(all[i], todo)...)
		}
	}
	err := s.runJobs(ctx, jobs)
	for i, f := range all {
		s.collect(f, units[i])
	}
	return all, err
}

// todo are the units without a good result.
func (s *session) todo(k kernel, units []unit.Unit) []unit.Unit {
	todo := slices.DeleteFunc(slices.Clone(units), func(u unit.Unit) bool {
		kept := s.store.Load(k.Release, u)
		return kept != nil && kept.OK()
	})
	if n := len(units) - len(todo); n > 0 {
		fmt.Fprintf(s.out, "%-7s %d of %d parts are kept from earlier runs\n", k.Series, n, len(units))
	}
	return todo
}

// divide makes machines of units.
func (s *session) divide(f *finished, todo []unit.Unit) (jobs []job) {
	seconds := 0.0
	for _, u := range todo {
		takes := s.store.Estimate(u)
		if len(jobs) == 0 || seconds+takes > machineSeconds {
			jobs = append(jobs, job{of: f, name: fmt.Sprintf("%02d", len(jobs)+1)})
			seconds = 0
		}
		last := &jobs[len(jobs)-1]
		last.units, seconds = append(last.units, u), seconds+takes
	}
	if len(jobs) > 0 {
		_ = os.RemoveAll(s.logs(f.kernel))
	}
	return jobs
}

// runJobs runs machines, some at a time.
func (s *session) runJobs(ctx context.Context, jobs []job) error {
	slots := make(chan struct{}, s.parallel)
	var running sync.WaitGroup
	for _, j := range jobs {
		slots <- struct{}{} // in the order asked for
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			if err := s.one(ctx, j); err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				j.of.errs = append(j.of.errs, err)
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return errors.New("interrupted: the same command goes on from here")
	}
	return nil
}

// one runs a job. A unit that a machine ended in is begun once more, in another
// machine; the second time, it has failed, and those after it are run.
func (s *session) one(ctx context.Context, j job) error {
	k, again := j.of.kernel, false
	for boots := 1; len(j.units) > 0; boots++ {
		name := j.name
		if boots > 1 {
			name = fmt.Sprintf("%s-%d", j.name, boots)
		}
		var m attempt
		b, err := s.boot(ctx, k, name, j.units, func(i int, report string, trouble []string) {
			m.ended, m.last = i+1, report
			m.failed = m.failed || !good(report)
			m.err = errors.Join(m.err, s.save(k, j.units[i], report, trouble))
		})
		if err = errors.Join(err, m.err); err != nil {
			return err
		}
		s.count(j.of, b)
		if m.ended == len(j.units) {
			if trouble := m.after(b); len(trouble) > 0 {
				return s.save(k, j.units[m.ended-1], m.last, trouble)
			}
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // what ended is kept, and runJobs says the rest
		}
		again = again && m.ended == 0
		j.units = j.units[m.ended:]
		console := filepath.Join(s.logs(k), name, "console.log")
		switch {
		case !again:
			fmt.Fprintf(os.Stderr, "%s: the machine ended in %s (%v), trying again; see %s\n", k.Series, j.units[0].Name(), b.Err, console)
			again = true
		case b.rest == "":
			return fmt.Errorf("the machine does not come to its tests (%w); see %s", errors.Join(b.Err, errors.New("it ended by itself")), console)
		default:
			trouble := append(b.trouble, "the machine ended in "+j.units[0].Name()+", twice; see "+console)
			if err := s.save(k, j.units[0], b.rest, trouble); err != nil {
				return err
			}
			j.units, again = j.units[1:], false
		}
	}
	return nil
}

// attempt is what a machine does with the units of a job.
type attempt struct {
	ended  int
	last   string // report
	failed bool
	err    error
}

func good(report string) bool {
	run := result.Parse(strings.NewReader(report))
	return len(run.Suites) == 1 && run.Suites[0].OK()
}

// after is what was wrong with a machine after its last unit had ended.
func (m *attempt) after(b *booted) []string {
	trouble := b.trouble
	switch {
	case !b.Finished:
		trouble = append(trouble, "the machine ended without an exit status")
	case b.Status != 0 && !m.failed:
		trouble = append(trouble, fmt.Sprintf("exit status %d of the machine, although no test failed", b.Status))
	}
	return trouble
}

// save keeps the result of a unit, and prints it.
func (s *session) save(k kernel, u unit.Unit, report string, trouble []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range result.Parse(strings.NewReader(report)).Suites {
		r.Package = u.Name()
		fmt.Fprintf(s.out, "%-7s", k.Series)
		if err := result.Print(s.out, r); err != nil {
			return err
		}
		if s.verbose {
			if err := result.PrintTests(s.out, r); err != nil {
				return err
			}
		}
	}
	for _, line := range trouble {
		fmt.Fprintf(s.out, "%-7s%s: %s\n", k.Series, u.Name(), line)
	}
	return s.store.Save(k.Release, u, report, trouble...)
}

// collect puts together what is known of a kernel.
func (s *session) collect(f *finished, units []unit.Unit) {
	var report strings.Builder
	for _, u := range units {
		kept := s.store.Load(f.kernel.Release, u)
		if kept == nil {
			f.missing = append(f.missing, u.Name())
			continue
		}
		report.WriteString(kept.Report)
		for _, line := range kept.Trouble {
			f.trouble = append(f.trouble, u.Name()+": "+line)
		}
	}
	f.run = result.Parse(strings.NewReader(report.String()))
	f.run.Release = f.kernel.Release
}

func (s *session) count(f *finished, b *booted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.machines++
	f.cpu += b.CPU
}
