// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/test/vm/qemu"
	"github.com/sluice-cni/sluice/test/vm/suite"
	"github.com/sluice-cni/sluice/test/vm/unit"
)

// fakeMachines stand for QEMU: units end well, unless something is said of them.
type fakeMachines struct {
	mu sync.Mutex
	// ran has each unit that a machine began, as "KERNEL UNIT", in order.
	ran []string
	// fails and crashes say how often a unit yet fails, or ends its machine.
	fails, crashes map[string]int
	// alarm is what the console says of a unit.
	alarm map[string]string
	// ending is said by each machine's console after the last unit.
	ending []string
	// dead machines do not come to their tests.
	dead bool
	// stop is called when so many units have ended.
	stopAfter int
	stop      context.CancelFunc
}

func (m *fakeMachines) boot(ctx context.Context, k kernel, _ string, units []unit.Unit, ended func(int, string, []string)) (*booted, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return &booted{Outcome: &qemu.Outcome{Err: errors.New("no luck")}}, nil
	}
	status := 0
	for i, u := range units {
		if ctx.Err() != nil {
			return &booted{Outcome: &qemu.Outcome{}}, nil
		}
		m.ran = append(m.ran, k.Series+" "+u.Name())
		report := ran(u.Package.Path, "TestPrivilegedA")
		if m.crashes[u.Name()] > 0 {
			m.crashes[u.Name()]--
			return &booted{Outcome: &qemu.Outcome{}, rest: "@@sluice begin " + u.Package.Path + "\n"}, nil
		}
		if m.fails[u.Name()] > 0 {
			m.fails[u.Name()]--
			report, status = strings.ReplaceAll(strings.Replace(report, "end 0", "end 1", 1), "PASS", "FAIL"), 1
		}
		var alarms []string
		if a := m.alarm[u.Name()]; a != "" {
			alarms = []string{a}
			delete(m.alarm, u.Name())
		}
		ended(i, report, alarms)
		if m.stopAfter--; m.stopAfter == 0 {
			m.stop()
		}
	}
	return &booted{Outcome: &qemu.Outcome{Finished: true, Status: status}, trouble: m.ending}, nil
}

// tree is a working tree with two packages, and the results kept of it.
type tree struct {
	dir  string
	w    *work
	fake *fakeMachines
}

func newTree(t *testing.T) *tree {
	t.Helper()
	packages := []suite.Package{{Path: "loader", Tests: []string{"TestPrivilegedA"}, Plugins: true}, {Path: "pkg/rtnl", Tests: []string{"TestPrivilegedB"}}}
	w := &work{options: &options{run: defaultRun, parallel: 1, out: t.Output()}, build: t.TempDir(), packages: packages, digests: map[string][2]string{}}
	return &tree{dir: t.TempDir(), w: w, fake: &fakeMachines{}}
}

// run runs the matrix of 5.10 and the newest kernel, and returns what the machines began.
func (x *tree) run(ctx context.Context, t *testing.T, change func(*session)) ([]string, []*finished, error) {
	t.Helper()
	x.fake.ran = nil
	s := &session{work: x.w, store: &unit.Store{Dir: x.dir}, boot: x.fake.boot}
	if change != nil {
		change(s)
	}
	all, err := s.runAll(ctx, []kernel{{Series: "5.10", Release: "5.10.0-46"}, {Series: "newest", Release: "7.3.4"}})
	return x.fake.ran, all, err
}

// wantRun runs the matrix, which begins these units, and after which something
// is wrong or not.
func (x *tree) wantRun(t *testing.T, wrong bool, units ...string) {
	t.Helper()
	ran, all, err := x.run(t.Context(), t, nil)
	if d := cmp.Diff(units, ran); d != "" || err != nil {
		t.Errorf("units run (-want +got): %v\n%s", err, d)
	}
	var said []string
	for _, f := range all {
		said = append(said, x.w.judge(f, nil, nil)...)
	}
	if (len(said) > 0) != wrong {
		t.Errorf("judged: %q", said)
	}
}

var everyUnit = []string{"5.10 loader", "5.10 pkg/rtnl", "newest loader", "newest pkg/rtnl"}

// What has passed is not run again until it changes.
func TestMatrixRunsWhatChanged(t *testing.T) {
	x := newTree(t)
	x.wantRun(t, false, everyUnit...)
	x.wantRun(t, false)
	x.w.digests["pkg/rtnl"] = [2]string{"another binary", ""}
	x.wantRun(t, false, "5.10 pkg/rtnl", "newest pkg/rtnl")
	x.w.digests["loader"] = [2]string{"", "another file that tests read"}
	x.wantRun(t, false, "5.10 loader", "newest loader")
	x.w.inputs.Plugins = "other plugins"
	x.wantRun(t, false, "5.10 loader", "newest loader")
	x.w.inputs.Machine = "another QEMU"
	x.wantRun(t, false, everyUnit...)
	x.w.packages[1].Tests = append(x.w.packages[1].Tests, "TestPrivilegedC")
	x.wantRun(t, false, "5.10 pkg/rtnl", "newest pkg/rtnl")
	x.w.inputs.Machine = "" // as it once was, but for the test
	x.wantRun(t, false, "5.10 pkg/rtnl", "newest pkg/rtnl")
}

// -fresh runs everything, -again nothing; both judge what is then known.
func TestMatrixFreshAndAgain(t *testing.T) {
	x := newTree(t)
	x.w.again = true
	x.wantRun(t, true)
	x.w.again = false
	x.wantRun(t, false, everyUnit...)
	ran, all, err := x.run(t.Context(), t, func(s *session) { s.store.Fresh = true })
	if d := cmp.Diff(everyUnit, ran); d != "" || err != nil || len(x.w.judge(all[0], nil, nil)) > 0 {
		t.Error(err, d)
	}
	x.w.again = true
	x.wantRun(t, false)
}

// What failed is run again, alone.
func TestMatrixRunsWhatFailed(t *testing.T) {
	x := newTree(t)
	x.fake.fails = map[string]int{"loader": 1}
	x.wantRun(t, true, everyUnit...)
	x.wantRun(t, false, "5.10 loader")
	x.wantRun(t, false)
}

// So is what the console tells of, although all tests passed.
func TestMatrixTrouble(t *testing.T) {
	x := newTree(t)
	x.fake.alarm = map[string]string{"loader": "BUG: bad page"}
	x.wantRun(t, true, everyUnit...)
	x.wantRun(t, false, "5.10 loader")
	y := newTree(t)
	y.fake.ending = []string{"Kernel panic"}
	y.wantRun(t, true, everyUnit...)
	y.fake.ending = nil
	y.wantRun(t, false, "5.10 pkg/rtnl", "newest pkg/rtnl")
}

// A run that is killed goes on where it was.
func TestMatrixResumes(t *testing.T) {
	for n := 1; n < len(everyUnit); n++ {
		x := newTree(t)
		ctx, cancel := context.WithCancel(t.Context())
		x.fake.stopAfter, x.fake.stop = n, cancel
		if ran, _, err := x.run(ctx, t, nil); err == nil || len(ran) != n {
			t.Errorf("%d: %v, %v", n, err, ran)
		}
		x.wantRun(t, false, everyUnit[n:]...)
		cancel()
	}
}

// A unit that ends its machine once is begun again. One that does so twice has
// failed, and those after it are run.
func TestMatrixMachineEnds(t *testing.T) {
	x := newTree(t)
	x.fake.crashes = map[string]int{"loader": 1}
	x.wantRun(t, false, append([]string{"5.10 loader"}, everyUnit...)...)
	y := newTree(t)
	y.fake.crashes = map[string]int{"loader": 2}
	y.wantRun(t, true, append([]string{"5.10 loader"}, everyUnit...)...)
	y.wantRun(t, false, "5.10 loader")
	z := newTree(t)
	z.fake.dead = true
	z.wantRun(t, true)
}

// Machines are of one kernel, and neither too short nor too long.
func TestDivide(t *testing.T) {
	x := newTree(t)
	s := &session{work: x.w, store: &unit.Store{Dir: x.dir}}
	var todo []unit.Unit
	for range 10 {
		u := unit.Whole(suite.Package{Path: "p", Tests: make([]string, 20)}, "", "") // 40 seconds
		todo = append(todo, u)
	}
	var got []int
	for _, j := range s.divide(&finished{}, todo) {
		got = append(got, len(j.units))
	}
	if d := cmp.Diff([]int{3, 3, 3, 1}, got); d != "" {
		t.Error(d)
	}
}

// Between the ends, test/conformance runs the newest CNI version only.
func TestOlderVersions(t *testing.T) {
	for _, name := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"} {
		if !matches(t, older, name) {
			t.Errorf("%s is run", name)
		}
	}
	for _, name := range []string{"1.1.0", "bridge", "CHECK", "10.1.0"} {
		if matches(t, older, name) {
			t.Errorf("%s is left out", name)
		}
	}
	if got := leftOut("test/conformance", false); !slices.Contains(got, olderVersions) {
		t.Errorf("%q", got)
	}
}

// The first kernel runs all but what only the host runs.
func TestLeftOut(t *testing.T) {
	for _, tt := range []struct {
		path string
		test string
		runs map[bool]bool // by whether it is the first kernel
	}{
		{"cmd/sluice", "TestPrivilegedStatus", map[bool]bool{true: false, false: false}},
		{"test/e2e/lifecycle", "TestPrivilegedRollback", map[bool]bool{true: true, false: false}},
		{"loader", "TestPrivilegedLoad", map[bool]bool{true: true, false: true}},
	} {
		for first, want := range tt.runs {
			left := slices.ContainsFunc(leftOut(tt.path, first), func(p string) bool { return matches(t, p, tt.test) })
			if left == want {
				t.Errorf("%s of %s, first kernel %t: runs %t", tt.test, tt.path, first, !left)
			}
		}
	}
}

// A kernel that offers nothing new runs a test of each kind, and all walks of packets.
func TestSampled(t *testing.T) {
	all := []string{"TestPrivilegedEnableDisable", "TestPrivilegedGC"}
	for path, want := range map[string][]string{"loader": all[:1], "plugins/meta/sbr": nil, "bpf/tests": all} {
		if got := sampled(suite.Package{Path: path, Tests: all}, wholePackages["6.1"]).Tests; !slices.Equal(got, want) {
			t.Errorf("%s runs %q", path, got)
		}
	}
}
