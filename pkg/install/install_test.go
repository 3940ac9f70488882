// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func program(t *testing.T, dir, content string) string {
	t.Helper()
	p := filepath.Join(dir, "sluice-cni")
	if err := os.WriteFile(p, []byte(content), 0o755); err != nil { //nolint:gosec // a test's own file
		t.Fatal(err)
	}
	return p
}

func read(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestInstall(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	self, dir := program(t, root, "new"), filepath.Join(root, "a", "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"bridge": "reference", tempPrefix + "old": "left by a killed install", "stranger": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("stranger", filepath.Join(dir, "tuning")); err != nil {
		t.Fatal(err)
	}
	for round, want := range []Result{
		{Name: "bridge", Action: Copied, Replaced: true},
		{Name: "bridge", Action: Unchanged},
	} {
		got, err := Install(t.Context(), dir, Source{self, []string{"bridge", "tuning", "host-local"}})
		if err != nil {
			t.Fatal(err)
		}
		want.Path = filepath.Join(dir, "bridge")
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("round %d (-want +got):\n%s", round, diff)
		}
	}
	if diff := cmp.Diff([]string{"bridge", "host-local", "stranger", "tuning"}, names(t, dir)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	sameFile(t, dir, "bridge", "tuning", "host-local")
	// What is built over the binary, in place, is not what the plugins are.
	if err := os.WriteFile(self, []byte("bug"), 0o755); err != nil { //nolint:gosec // a program is executable
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "bridge")); got != "new" {
		t.Errorf("bridge became %q with the binary", got)
	}
	if got := read(t, filepath.Join(dir, "stranger")); got != "x" {
		t.Errorf("a symlink was followed: stranger holds %q", got)
	}
}

func TestInstallRefusals(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", ".", "..", "a/b", "dir"} {
		root := t.TempDir()
		self, dir := program(t, root, "new"), filepath.Join(root, "bin")
		if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "bridge"), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(t.Context(), dir, Source{self, []string{"bridge", bad}}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
		if got := read(t, filepath.Join(dir, "bridge")); got != "old" {
			t.Errorf("with %q refused, bridge was replaced all the same", bad)
		}
		if diff := cmp.Diff([]string{"bridge", "dir"}, names(t, dir)); diff != "" {
			t.Errorf("left behind (-want +got):\n%s", diff)
		}
	}
	if _, err := Install(t.Context(), t.TempDir(), Source{"/no/such/file", []string{"bridge"}}); err == nil {
		t.Error("a missing binary was accepted")
	}
	if _, err := Install(t.Context(), t.TempDir(), Source{t.TempDir(), []string{"bridge"}}); err == nil {
		t.Error("a directory was accepted as the binary")
	}
}

// Two binaries are installed together or not at all.
func TestInstallTwo(t *testing.T) {
	t.Parallel()
	one, two := program(t, t.TempDir(), "one"), program(t, t.TempDir(), "two")
	dir := filepath.Join(t.TempDir(), "bin")
	if _, err := Install(t.Context(), dir, Source{one, []string{"bridge"}}, Source{"/no/such/file", []string{"dhcp"}}); err == nil {
		t.Error("a missing second binary was accepted")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it has begun all the same")
	}
	if err := os.MkdirAll(filepath.Join(dir, "dhcp"), 0o755); err != nil {
		t.Fatal(err)
	}
	sources := []Source{{one, []string{"bridge", "ptp"}}, {two, []string{"dhcp"}}}
	if _, err := Install(t.Context(), dir, sources...); err == nil {
		t.Error("a directory was replaced")
	}
	if diff := cmp.Diff([]string{"dhcp"}, names(t, dir)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
	if err := os.Remove(filepath.Join(dir, "dhcp")); err != nil {
		t.Fatal(err)
	}
	got, err := Install(t.Context(), dir, sources...)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for name, want := range map[string]string{"bridge": "one", "ptp": "one", "dhcp": "two"} {
		if content := read(t, filepath.Join(dir, name)); content != want {
			t.Errorf("%s is %q", name, content)
		}
	}
}

// Names laid one after the other are one file, and so are those that somebody copied by hand.
func TestInstallNameByName(t *testing.T) {
	t.Parallel()
	self, dir := program(t, t.TempDir(), "new"), t.TempDir()
	for name, content := range map[string]string{"ptp": "new", "closed": "new", "other": "old"} {
		perm := os.FileMode(0o755)
		if name == "closed" {
			perm = 0o700 // nothing to link to: not every runtime could start it
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), perm); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), perm); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		names []string
		want  []Result
	}{
		{[]string{"bridge"}, []Result{{Name: "bridge", Action: Copied}}},
		{[]string{"host-local", "bridge"}, []Result{{Name: "host-local", Action: Copied}, {Name: "bridge", Action: Unchanged}}},
		{[]string{"closed", "other", "ptp"}, []Result{
			{Name: "closed", Action: Copied, Replaced: true}, {Name: "other", Action: Copied, Replaced: true}, {Name: "ptp", Action: Unchanged},
		}},
	} {
		got, err := Install(t.Context(), dir, Source{self, step.names})
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			got[i].Path = ""
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	sameFile(t, dir, "ptp", "bridge", "host-local", "closed", "other")
}

// sameFile demands that the names are one file, which runtimes of any user can start.
func sameFile(t *testing.T, dir string, names ...string) {
	t.Helper()
	first, err := os.Lstat(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	if first.Mode() != 0o755 {
		t.Errorf("%s has the mode %v", names[0], first.Mode())
	}
	for _, n := range names[1:] {
		if fi, err := os.Lstat(filepath.Join(dir, n)); err != nil || !os.SameFile(first, fi) {
			t.Errorf("%s and %s are two files (%v): IPAM could not be called in-process", names[0], n, err)
		}
	}
}

// A binary that lies in the directory itself is copied too: what is written over it must not reach the plugins.
func TestInstallFromTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self := program(t, dir, "new")
	if err := os.Chmod(self, 0o755); err != nil { //nolint:gosec // a program is executable
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Install(t.Context(), dir, Source{self, []string{"bridge", "ptp", filepath.Base(self)}}); err != nil {
			t.Fatal(err)
		}
		sameFile(t, dir, "bridge", "ptp")
	}
	if err := os.WriteFile(self, []byte("bug"), 0o755); err != nil { //nolint:gosec // a program is executable
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "bridge")); got != "new" {
		t.Errorf("bridge became %q with the binary", got)
	}
}
