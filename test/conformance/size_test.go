// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/install"
)

// Each program stays small.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, p := range install.Programs() {
		st, err := os.Stat(programs.Path(p.Name))
		if err != nil {
			t.Fatal(err)
		}
		limit := int64(15_000_000)
		switch p.Name {
		case install.Multicall: // every call of a plugin reads it from the page cache
			limit = 9_000_000
		case install.IPAMStore: // client-go and the etcd client; it runs for one ADD in 30
			limit = 25_000_000
		}
		if st.Size() > limit {
			t.Errorf("%s has %d bytes, at most %d", p.Name, st.Size(), limit)
		}
	}
}

// CNI_COMMAND=VERSION answers hardly later than a Go program that does nothing.
func TestStartTime(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "empty.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", empty, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const limit = 1.5
	var ratio float64
	for range 5 { // on a busy machine a round can go wrong
		base, ours := medians(t, empty, programs.Path("bridge"))
		ratio = float64(ours) / float64(base)
		t.Logf("empty program %s, VERSION %s: %.2fx", base, ours, ratio)
		if ratio <= limit {
			return
		}
	}
	t.Errorf("VERSION takes %.2fx the time of an empty program, at most %.1fx", ratio, limit)
}

// medians runs both programs in turns.
func medians(t *testing.T, empty, plugin string) (base, ours time.Duration) {
	t.Helper()
	var a, b []time.Duration
	for range 101 {
		a = append(a, duration(t, empty))
		b = append(b, duration(t, plugin))
	}
	slices.Sort(a)
	slices.Sort(b)
	return a[len(a)/2], b[len(b)/2]
}

func duration(t *testing.T, path string) time.Duration {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return time.Since(start)
}
