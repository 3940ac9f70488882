// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	packages, err := Find(context.Background(), "../../..")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range packages {
		paths = append(paths, p.Path)
	}
	for _, want := range []string{"bpf/tests", "loader", "pkg/rtnl", "plugins/main/bridge", "test/e2e/datapath"} {
		if !slices.Contains(paths, want) {
			t.Errorf("%s is not among %v", want, paths)
		}
	}
	for _, p := range paths {
		if leftOut(p) || p == "pkg/cnierr" {
			t.Errorf("%s has no place in a test machine", p)
		}
	}
	if _, err := Find(context.Background(), "../../..", "./nowhere"); err == nil {
		t.Error("a package that does not exist was found")
	}
}

func TestLeftOut(t *testing.T) {
	for path, want := range map[string]bool{
		"bench": false, "bench/traffic": true, "benchmark": false, "test/vm/result": true, "pkg/test/archtest": true, "pkg/test/require": false,
	} {
		if leftOut(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

func TestSet(t *testing.T) {
	dir := t.TempDir()
	s := &Set{
		Env: map[string]string{envBinaries: "bin", "X": "y"}, Args: []string{"-test.run=A"}, Timeout: Duration{90 * time.Second},
		Suites: []Suite{{Package: "loader", Binary: "tests/loader.test", Dir: "/src/loader"}},
	}
	raw, err := s.JSON()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "suites.json")
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSet(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Env[envBinaries], s.Suites[0].Binary = filepath.Join(dir, "bin"), filepath.Join(dir, "tests/loader.test")
	if d := cmp.Diff(s, got); d != "" {
		t.Error(d)
	}
}
