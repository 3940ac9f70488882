// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// tool makes a program that notes the arguments of each run, and fails while there is a file "broken" beside it. runs counts those that load.
func tool(t *testing.T, dir string) (path string, runs func() int) {
	t.Helper()
	path = filepath.Join(dir, "sluice")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = resync ] || exit 9\n[ ! -e %s/broken ] || { echo no datapath >&2; exit 1; }\necho run \"$@\" >> %s/runs\n", dir, dir)
	if err := testbin.WriteScript(path, script); err != nil {
		t.Fatal(err)
	}
	return path, func() int {
		b, err := os.ReadFile(filepath.Join(dir, "runs"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(b), "run resync --load\n")
	}
}

func cidrs(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// The administrator's networks and keys stay, whatever the agent adds, changes and removes.
func TestEnsure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "etc", "config.json")
	path, runs := tool(t, dir)
	fresh := func() *Exempt { return New(config, filepath.Join(dir, "etc", ".agent.json"), path) }
	e := fresh()
	listed := func() []netip.Prefix {
		c, err := nodeconf.Load(config)
		if err != nil {
			t.Fatal(err)
		}
		return c.NonMasqueradeCIDRs
	}
	step := func(what string, e *Exempt, wanted, want []netip.Prefix, wantRuns int) {
		t.Helper()
		if err := e.Ensure(t.Context(), wanted); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := listed(); !slices.Equal(got, want) || runs() != wantRuns {
			t.Errorf("%s: %v after %d runs, want %v after %d", what, got, runs(), want, wantRuns)
		}
	}
	step("nothing wanted, no file", e, nil, nil, 1)
	if _, err := os.Stat(config); err == nil {
		t.Error("a file without a need")
	}
	step("the first network", e, cidrs("10.244.0.0/16"), cidrs("10.244.0.0/16"), 2)
	step("again", e, cidrs("10.244.0.0/16"), cidrs("10.244.0.0/16"), 2)
	e.Look()
	step("devices have come", e, cidrs("10.244.0.0/16"), cidrs("10.244.0.0/16"), 3)
	// The agent has read the file in the same look.
	e.Look()
	if err := os.WriteFile(config, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Resync(t.Context()); err != nil || runs() != 4 {
			t.Errorf("devices have come after the file was read: %v, %d runs, want 4", err, runs())
		}
	}
	// The administrator writes the file anew, with a network of their own and one that is the agent's too.
	text := `{"relearnSeconds": 60, "nonMasqueradeCIDRs": ["192.0.2.0/24", "10.244.0.0/16"], "backend": "auto"}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	step("with the administrator's", e, cidrs("10.244.0.0/16", "fd24::/48"), cidrs("192.0.2.0/24", "10.244.0.0/16", "fd24::/48"), 5)
	step("a new process", fresh(), cidrs("fd24::/48"), cidrs("192.0.2.0/24", "fd24::/48"), 6)
	b, err := os.ReadFile(config)
	if err != nil || !strings.Contains(string(b), `"relearnSeconds": 60`) || strings.Index(string(b), "relearn") > strings.Index(string(b), "backend") {
		t.Errorf("%v, the keys are\n%s", err, b)
	}
	if err := e.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := listed(); !slices.Equal(got, cidrs("192.0.2.0/24")) {
		t.Errorf("after Remove: %v", got)
	}
	b, err = os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil || !strings.HasSuffix(string(b), "run resync\n") || strings.Count(string(b), "\n") != 7 {
		t.Errorf("%v: Remove must not load what is not there:\n%s", err, b)
	}
}

// A file that cannot be read stays, and the error names file, key and value. A tool that fails is run again.
func TestEnsureFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	path, runs := tool(t, dir)
	e := New(config, filepath.Join(dir, ".agent.json"), path)
	const bad = `{"backend": "xdp"}`
	if err := os.WriteFile(config, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Ensure(t.Context(), cidrs("10.0.0.0/8")); err == nil || !strings.Contains(err.Error(), config+`: invalid backend "xdp"`) {
		t.Errorf("a bad file: %v", err)
	}
	if b, err := os.ReadFile(config); err != nil || string(b) != bad {
		t.Errorf("the bad file is %q, %v", b, err)
	}
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Ensure(t.Context(), cidrs("10.0.0.0/8")); err == nil || !strings.Contains(err.Error(), "no datapath") {
		t.Errorf("a broken tool: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "broken")); err != nil {
		t.Fatal(err)
	}
	if err := e.Ensure(t.Context(), cidrs("10.0.0.0/8")); err != nil || runs() != 1 {
		t.Errorf("the tool was run %d times: %v", runs(), err)
	}
	var many []netip.Prefix
	for i := range 1025 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	if err := e.Ensure(t.Context(), many); err == nil || !strings.Contains(err.Error(), "at most 1024") {
		t.Errorf("too many: %v", err)
	}
}
