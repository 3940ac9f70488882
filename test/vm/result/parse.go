// SPDX-License-Identifier: Apache-2.0

// Package result reads what the tests of one machine said, compares skips with
// what the machine is known to lack, and renders tables.
package result

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// Status of a test.
type Status string

// Lost is a test that began and never ended: its process did.
const (
	Pass Status = "PASS"
	Fail Status = "FAIL"
	Skip Status = "SKIP"
	Lost Status = "LOST"
)

// Test is one test or subtest.
type Test struct {
	Name    string
	Status  Status
	Seconds float64
	// Missing is the feature that a skip named, "" when it named none.
	Missing string
	// Output is what it printed.
	Output []string
}

// Suite is one test binary's run.
type Suite struct {
	// Package is the path below the module.
	Package string
	// Exit status of the process, -1 if it never ended.
	Exit    int
	Seconds float64
	Tests   []*Test
	// Output is what no test printed: a panic, a leak report.
	Output []string

	reports []string // what followed "report: "
	byName  map[string]*Test
	parents map[string]bool // names of tests with subtests, once asked for
}

// Run is what one machine reported.
type Run struct {
	// Release is what uname -r said.
	Release string
	Suites  []*Suite
	// Done is false when the report ends in the middle.
	Done bool
}

// Frames of the stream that "guest stream" writes around the output of the
// tests, which is that of -test.v=test2json.
const (
	frame       = "@@sluice "
	frameKernel = frame + "kernel "
	frameBegin  = frame + "begin "
	frameEnd    = frame + "end "
	frameDone   = frame + "done"
)

// Kernel, Begin, End and Done write frames.
func Kernel(w io.Writer, release string)     { fmt.Fprintf(w, "%s%s\n", frameKernel, release) }
func Begin(w io.Writer, pkg string)          { fmt.Fprintf(w, "%s%s\n", frameBegin, pkg) }
func End(w io.Writer, exit int, sec float64) { fmt.Fprintf(w, "\n%s%d %.2f\n", frameEnd, exit, sec) }
func Done(w io.Writer)                       { fmt.Fprintln(w, frameDone) }

// Parse reads a stream. A package may be in it several times, with other tests
// each time. It never fails: what is missing is visible in the Run.
func Parse(r io.Reader) *Run {
	run := &Run{}
	var s *Suite
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, frameKernel):
			run.Release = strings.TrimPrefix(line, frameKernel)
		case strings.HasPrefix(line, frameBegin):
			run.add(s)
			s = NewSuite(strings.TrimPrefix(line, frameBegin))
		case strings.HasPrefix(line, frameEnd) && s != nil:
			s.end(strings.TrimPrefix(line, frameEnd))
			run.add(s)
			s = nil
		case line == frameDone:
			run.Done = true
		case s != nil:
			s.Line(line)
		}
		if err != nil {
			run.add(s)
			return run
		}
	}
}

// add takes a part of a package's run, nil is none. The package did well only if
// every part did.
func (r *Run) add(s *Suite) {
	if s == nil {
		return
	}
	whole := r.suite(s.Package)
	if whole == nil {
		r.Suites = append(r.Suites, s)
		return
	}
	if whole.Exit == 0 || s.cut() {
		whole.Exit = s.Exit
	}
	whole.Seconds += s.Seconds
	whole.Tests = append(whole.Tests, s.Tests...)
	whole.Output = append(whole.Output, s.Output...)
	whole.reports = append(whole.reports, s.reports...)
	whole.parents = nil
}

// Parts returns what a stream says of each suite that has ended, in order, and
// what it says of one that has not.
func Parts(stream string) (ended []string, rest string) {
	for at := 0; ; {
		i := strings.Index(stream[at:], frameBegin)
		if i < 0 {
			return ended, ""
		}
		from := at + i
		end := strings.Index(stream[from:], "\n"+frameEnd)
		if end < 0 {
			return ended, stream[from:]
		}
		to := from + end + 1
		line := strings.IndexByte(stream[to:], '\n')
		if line < 0 {
			return ended, stream[from:]
		}
		at = to + line + 1
		ended = append(ended, stream[from:at])
	}
}

// cut reports whether the process did not end by itself, but with its machine or
// by a signal (a status above 128): some tests may not have begun.
func (s *Suite) cut() bool { return s.Exit == -1 || s.Exit > 128 }

// NewSuite returns a Suite that has said nothing yet.
func NewSuite(pkg string) *Suite { return &Suite{Package: pkg, Exit: -1, byName: map[string]*Test{}} }

func (s *Suite) end(text string) {
	exit, sec, _ := strings.Cut(text, " ")
	if n, err := strconv.Atoi(exit); err == nil {
		s.Exit = n
	}
	s.Seconds, _ = strconv.ParseFloat(sec, 64)
}

// marker tells a line of package testing from one of the test.
const marker = '\x16'

var (
	current = regexp.MustCompile(`^\x16?=== (RUN|CONT|NAME|PAUSE)\s*(\S*)`)
	ended   = regexp.MustCompile(`^\x16?\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)`)
	missing = regexp.MustCompile(`missing feature: (.+)$`)
	report  = regexp.MustCompile(`\breport: (.+)$`)
)

// Line takes the next line that the test binary printed, without its end. What
// a test or its child printed without an end of line stands before the marker.
func (s *Suite) Line(line string) {
	if i := strings.LastIndexByte(line, marker); i > 0 {
		s.piece(line[:i])
		line = line[i:]
	}
	s.piece(line)
}

func (s *Suite) piece(line string) {
	if m := ended.FindStringSubmatch(line); m != nil {
		t := s.test(m[2])
		t.Status = Status(m[1])
		t.Seconds, _ = strconv.ParseFloat(m[3], 64)
		return
	}
	if m := current.FindStringSubmatch(line); m != nil {
		s.byName[""] = nil
		if m[2] != "" {
			s.byName[""] = s.test(m[2])
		}
		return
	}
	t := s.byName[""]
	if t == nil {
		if text := strings.Trim(line, "\x16"); text != "" && text != "PASS" && text != "FAIL" {
			s.Output = append(s.Output, text)
		}
		return
	}
	t.Output = append(t.Output, line)
	if m := report.FindStringSubmatch(line); m != nil {
		s.reports = append(s.reports, m[1])
	}
	if m := missing.FindStringSubmatch(line); m != nil {
		t.Missing = m[1]
	}
}

func (s *Suite) test(name string) *Test {
	t := s.byName[name]
	if t == nil {
		t = &Test{Name: name, Status: Lost}
		s.byName[name] = t
		s.Tests = append(s.Tests, t)
	}
	return t
}

// Count returns how many tests ended in a way. Parents of subtests count too.
func (s *Suite) Count(status Status) int {
	n := 0
	for _, t := range s.Tests {
		if t.Status == status {
			n++
		}
	}
	return n
}

// OK reports whether the process ended well and no test failed or was lost.
func (s *Suite) OK() bool { return s.Exit == 0 && s.Count(Fail) == 0 && s.Count(Lost) == 0 }
