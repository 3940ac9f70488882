// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/bench/tool"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// What the axes of a report are about is there while it is measured, and gone afterwards: connections, rules of a third party.
func TestPrivilegedAxes(t *testing.T) {
	w, err := Build(t.Context(), Options{Suite: Suite{Name: Direct}, Pods: 2, Tools: true, IPv4Only: true}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	node := func(name string, args ...string) (out string) {
		t.Helper()
		err := w.Lab().Node.Do(func() (err error) { out, err = netlab.Run(name, args...); return err })
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	open := func() int { return strings.Count(node("ss", "-Htn", "state", "established"), ":20000") }
	before := open()
	for _, n := range []int{1, 150} {
		if err := w.Hold(n); err != nil {
			t.Fatal(err)
		}
		if got := open() - before; got != n {
			t.Errorf("%d connections are open, want %d", got, n)
		}
	}
	if r, cpu, err := w.Measure(Load{Op: "crr", Flows: 32, For: 50 * time.Millisecond}); err != nil || r.Count == 0 || cpu <= 0 {
		t.Errorf("beside them: %+v, %v (%v)", r, cpu, err)
	}
	if n, err := w.Release(); err != nil || n != 150 {
		t.Errorf("the server had %d (%v)", n, err)
	}
	for _, n := range []int{40, 10, 0} {
		if err := w.SetRules(n); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(node("nft", "list", "ruleset"), " drop\n"); got != n {
			t.Errorf("%d rules, want %d", got, n)
		}
		if _, _, err := w.Measure(Load{Op: "rr", Flows: 1, For: 10 * time.Millisecond}); err != nil {
			t.Errorf("with %d rules: %v", n, err)
		}
	}
	r, err := w.WithTool(0, func(e tool.Ends) (tool.Result, error) {
		return tool.RunWrk(t.Context(), e, 1, false, time.Second)
	})
	if err != nil || r.Count <= 0 || r.CPU <= 0 {
		t.Errorf("wrk: %+v (%v)", r, err)
	}
	if out := node("ip", "-6", "addr"); strings.TrimSpace(out) != "" {
		t.Errorf("the node has IPv6: %s", out)
	}
}

// Pods that take too long are an error of their own, which says how far it came.
func TestPrivilegedTimeIsUp(t *testing.T) {
	w, err := Build(t.Context(), Options{Suite: fakePlugins(t, ""), Pods: 1000, Parallel: 2, Until: time.Now().Add(300 * time.Millisecond)}, func(int) {})
	if err == nil {
		_ = w.Close()
	}
	if !errors.Is(err, ErrTime) || !strings.Contains(err.Error(), "of 1000 pods attached") {
		t.Errorf("got %v, want %v", err, ErrTime)
	}
}

// An ADD that fails ends the others.
func TestPrivilegedOneOfManyFails(t *testing.T) {
	start := time.Now()
	w, err := Build(t.Context(), Options{Suite: fakePlugins(t, "ADD"), Pods: 1000, Parallel: 2}, func(int) {})
	if err == nil {
		_ = w.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "not today") || time.Since(start) > netlab.Patient(20*time.Second) {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
