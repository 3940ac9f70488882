// SPDX-License-Identifier: Apache-2.0

package verbtimes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/install"
)

// TestMain lets this test binary be a process that counts.
func TestMain(m *testing.M) {
	if path := os.Getenv("TEST_VERBTIMES"); path != "" {
		n, err := strconv.Atoi(os.Args[1])
		for i := 0; i < n && err == nil; i++ {
			err = Observe(path, "bridge", "ADD", Success, 3*time.Millisecond)
		}
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func mustObserve(t *testing.T, path, plugin, verb string, r Result, d time.Duration) {
	t.Helper()
	if err := Observe(path, plugin, verb, r, d); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, path string) []Histogram {
	t.Helper()
	all, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestObserve(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "verbs")
	if all := mustRead(t, path); all != nil {
		t.Fatalf("without a file: %+v", all)
	}
	mustObserve(t, path, "portmap", "DEL", Failure, time.Hour)
	mustObserve(t, path, "portmap", "DEL", Failure, time.Millisecond) // a bound is inclusive
	mustObserve(t, path, "portmap", "DEL", Failure, time.Millisecond+1)
	mustObserve(t, path, "unknown", "GC", TryAgain, -time.Second) // a clock that went back
	all := mustRead(t, path)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	if h := all[0]; h.Plugin != "other" || h.Verb != "GC" || h.Result != TryAgain || h.Sum != 0 || h.Counts[0] != 1 {
		t.Errorf("%+v", h)
	}
	h := all[1]
	if h.Plugin != "portmap" || h.Verb != "DEL" || h.Result != Failure || h.Sum != time.Hour+2*time.Millisecond+1 || h.Count() != 3 {
		t.Errorf("%+v", h)
	}
	if last := len(h.Counts) - 1; h.Counts[0] != 1 || h.Counts[1] != 1 || h.Counts[last] != 1 || len(h.Counts) != len(Bounds())+1 {
		t.Errorf("%v", h.Counts)
	}
	if err := Observe(path, "portmap", "EAT", Success, 0); err == nil {
		t.Error("an unknown verb is counted")
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Size() != int64(fileSize) {
		t.Errorf("%v %v", st, err)
	}
}

// Processes count at the same time, and none of their verbs is lost once the file is there.
func TestObserveAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verbs")
	mustObserve(t, path, "bridge", "ADD", Success, 0)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const processes, each = 8, 200
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			c := exec.CommandContext(t.Context(), exe, strconv.Itoa(each))
			c.Env = append(os.Environ(), "TEST_VERBTIMES="+path)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	if h := mustRead(t, path)[0]; h.Count() != processes*each+1 || h.Sum != processes*each*3*time.Millisecond {
		t.Errorf("%d verbs, %v", h.Count(), h.Sum)
	}
}

// What is not such a file is replaced, and a file that a third party truncates ends no process.
func TestForeignFile(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"empty": "", "short": "SLVERB01", "another layout": "SLVERB99" + string(make([]byte, fileSize-8))} {
		path := filepath.Join(t.TempDir(), "verbs")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if all := mustRead(t, path); all != nil {
			t.Errorf("%s: %+v", name, all)
		}
		mustObserve(t, path, "ptp", "ADD", Success, time.Second)
		if all := mustRead(t, path); len(all) != 1 || all[0].Count() != 1 {
			t.Errorf("%s: %+v", name, all)
		}
	}
	link := filepath.Join(t.TempDir(), "verbs")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := Observe(link, "ptp", "ADD", Success, 0); err == nil {
		t.Error("a symbolic link is followed")
	}
}

func TestTruncated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verbs")
	mustObserve(t, path, "ptp", "ADD", Success, time.Second)
	f, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := mapped(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := guard(path, func() { mem[fileSize-1]++ }); err == nil {
		t.Error("no error")
	}
}

// Each plugin that is installed has counters of its own.
func TestPlugins(t *testing.T) {
	t.Parallel()
	for _, name := range install.Plugins() {
		if at, err := place(name, "ADD", Success); err != nil || at < len(verbs)*len(results)*perEntry {
			t.Errorf("%s counts as another: %v", name, err)
		}
	}
}

func TestResultOf(t *testing.T) {
	t.Parallel()
	for code, want := range map[uint]Result{0: Success, 7: Failure, 11: TryAgain, 103: Failure} {
		if got := ResultOf(code); got != want {
			t.Errorf("%d: %s", code, got)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	path := filepath.Join(b.TempDir(), "verbs")
	for b.Loop() {
		if err := Observe(path, "bridge", "ADD", Success, time.Millisecond); err != nil {
			b.Fatal(err)
		}
	}
}

// What a killed process has left half made goes with the next one that makes the file. What another process is making stays.
func TestObserveRemovesLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left, living := filepath.Join(dir, ".verbs-1"), filepath.Join(dir, ".verbs-2")
	for _, path := range []string{left, living} {
		if err := os.WriteFile(path, []byte(magic), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(living)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	mustObserve(t, filepath.Join(dir, "verbs"), "bridge", "ADD", Success, time.Millisecond)
	got, err := filepath.Glob(filepath.Join(dir, ".verbs-*"))
	if err != nil || len(got) != 1 || got[0] != living {
		t.Errorf("%q, %v", got, err)
	}
}
