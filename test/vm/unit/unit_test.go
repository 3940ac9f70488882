// SPDX-License-Identifier: Apache-2.0

package unit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// Every test is in exactly one unit, but for those that a pattern leaves out.
func TestDivide(t *testing.T) {
	p := suite.Package{Path: "loader"}
	for i := range 45 {
		p.Tests = append(p.Tests, fmt.Sprintf("TestPrivileged%02d", i))
	}
	units, err := Divide(p, "^TestPrivileged0[0-3]$", "TestPrivileged05/older")
	if err != nil || len(units) != 3 {
		t.Fatal(units, err)
	}
	var got []string
	for i, u := range units {
		if u.Name() != fmt.Sprintf("loader %d/3", i+1) || u.Skip != "^TestPrivileged0[0-3]$|TestPrivileged05/older" {
			t.Errorf("%+v", u)
		}
		names := strings.Split(strings.TrimSuffix(strings.TrimPrefix(u.Run, "^("), ")$"), "|")
		if len(names) > most {
			t.Errorf("%s has %d tests", u.Name(), len(names))
		}
		got = append(got, names...)
	}
	if d := cmp.Diff(p.Tests[4:], got); d != "" {
		t.Error(d)
	}
	if units, err := Divide(p, "^TestPrivileged"); err != nil || len(units) != 0 {
		t.Errorf("%v %v", units, err)
	}
	if _, err := Divide(p, "("); err == nil {
		t.Error("a bad pattern was taken")
	}
}

// A unit's key changes with each thing that its result depends on.
func TestSign(t *testing.T) {
	base := Inputs{Release: "6.12", Series: "6.12", Machine: "m", Binary: "b", Plugins: "p", Data: "d", Guest: "g", Tools: "t"}
	key := func(change func(*Inputs, *Unit)) string {
		in, u := base, Whole(suite.Package{Path: "loader", Plugins: true}, "run", "skip")
		if change != nil {
			change(&in, &u)
		}
		if err := u.Sign(in); err != nil {
			t.Fatal(err)
		}
		return u.Key
	}
	seen := map[string]string{key(nil): "nothing"}
	for name, change := range map[string]func(*Inputs, *Unit){
		"release": func(in *Inputs, _ *Unit) { in.Release = "x" }, "series": func(in *Inputs, _ *Unit) { in.Series = "x" },
		"machine": func(in *Inputs, _ *Unit) { in.Machine = "x" }, "binary": func(in *Inputs, _ *Unit) { in.Binary = "x" },
		"plugins": func(in *Inputs, _ *Unit) { in.Plugins = "x" }, "data": func(in *Inputs, _ *Unit) { in.Data = "x" },
		"guest": func(in *Inputs, _ *Unit) { in.Guest = "x" }, "tools": func(in *Inputs, _ *Unit) { in.Tools = "x" },
		"run": func(_ *Inputs, u *Unit) { u.Run = "x" }, "skip": func(_ *Inputs, u *Unit) { u.Skip = "x" },
	} {
		k := key(change)
		if other, ok := seen[k]; ok {
			t.Errorf("%s changes no more than %s", name, other)
		}
		seen[k] = name
	}
	if again := key(nil); seen[again] != "nothing" {
		t.Error("a key is not the same twice")
	}
	alone := func(in *Inputs, u *Unit) { u.Package.Plugins = false }
	if key(alone) != key(func(in *Inputs, u *Unit) { alone(in, u); in.Plugins = "x" }) {
		t.Error("a package that runs no plugins depends on them")
	}
}

func TestDigest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(names ...string) string {
		d, err := Digest(dir, names...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	write("a", "1")
	write("b", "2")
	first := digest("a", "b")
	if first != digest("b", "a") {
		t.Error("the order counts")
	}
	write("b", "3")
	if first == digest("a", "b") {
		t.Error("what is in a file does not count")
	}
	if digest("a") == digest("a", "b") {
		t.Error("a file does not count")
	}
	if _, err := Digest(dir, "c"); err == nil {
		t.Error("a missing file has a digest")
	}
}

const report = "@@sluice begin loader\n\x16=== RUN   TestA\n\x16--- PASS: TestA (1.00s)\n\n@@sluice end 0 12.50\n"

func TestStore(t *testing.T) {
	u := Unit{Package: suite.Package{Path: "loader", Tests: []string{"TestA", "TestB"}}, Part: 1, Parts: 2, Key: "k1"}
	s := &Store{Dir: t.TempDir()}
	if got := s.Estimate(u); got != 2 {
		t.Errorf("unknown tests take %v s", got)
	}
	if err := s.Save("6.12", u, report); err != nil {
		t.Fatal(err)
	}
	k := s.Load("6.12", u)
	if k == nil || !k.OK() || k.Report != report || k.Unit != "loader 1/2" || s.Estimate(u) != 12.5 {
		t.Errorf("%+v, %v s", k, s.Estimate(u))
	}
	other := u
	other.Key = "k2"
	if s.Load("6.1", u) != nil || s.Load("6.12", other) != nil {
		t.Error("the result of another kernel or source was taken")
	}
	fresh := &Store{Dir: s.Dir, Fresh: true}
	if fresh.Load("6.12", u) != nil {
		t.Error("an older result counts")
	}
	if err := fresh.Save("6.12", u, report, "BUG: x"); err != nil {
		t.Fatal(err)
	}
	if k := fresh.Load("6.12", u); k == nil || k.OK() {
		t.Errorf("%+v", k)
	}
	// A report that was cut off, or of nothing, is no good one.
	for _, text := range []string{"", "@@sluice begin loader\n", strings.Replace(report, "end 0", "end 1", 1)} {
		if (&Kept{Report: text}).OK() {
			t.Errorf("%q is good", text)
		}
	}
	// Nor is a file that was damaged taken.
	if err := os.WriteFile(s.file("6.12", u), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s.Load("6.12", u) != nil {
		t.Error("half a file counts")
	}
	old := time.Now().Add(-2 * age)
	if err := os.Chtimes(s.file("6.12", u), old, old); err != nil {
		t.Fatal(err)
	}
	s.Prune()
	if _, err := os.Stat(s.file("6.12", u)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
