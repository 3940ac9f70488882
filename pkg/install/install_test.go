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
		{Name: "bridge", Action: Linked, Replaced: true},
		{Name: "bridge", Action: Unchanged},
	} {
		got, err := Install(dir, Source{self, []string{"bridge", "tuning", "host-local"}})
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
	mine, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"bridge", "tuning", "host-local"} {
		fi, err := os.Lstat(filepath.Join(dir, n))
		if err != nil || !os.SameFile(fi, mine) {
			t.Errorf("%s is not the binary: %v", n, err)
		}
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
		if _, err := Install(dir, Source{self, []string{"bridge", bad}}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
		if got := read(t, filepath.Join(dir, "bridge")); got != "old" {
			t.Errorf("with %q refused, bridge was replaced all the same", bad)
		}
		if diff := cmp.Diff([]string{"bridge", "dir"}, names(t, dir)); diff != "" {
			t.Errorf("left behind (-want +got):\n%s", diff)
		}
	}
	if _, err := Install(t.TempDir(), Source{"/no/such/file", []string{"bridge"}}); err == nil {
		t.Error("a missing binary was accepted")
	}
	if _, err := Install(t.TempDir(), Source{t.TempDir(), []string{"bridge"}}); err == nil {
		t.Error("a directory was accepted as the binary")
	}
}

// Two binaries are installed together or not at all.
func TestInstallTwo(t *testing.T) {
	t.Parallel()
	one, two := program(t, t.TempDir(), "one"), program(t, t.TempDir(), "two")
	dir := filepath.Join(t.TempDir(), "bin")
	if _, err := Install(dir, Source{one, []string{"bridge"}}, Source{"/no/such/file", []string{"dhcp"}}); err == nil {
		t.Error("a missing second binary was accepted")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it has begun all the same")
	}
	if err := os.MkdirAll(filepath.Join(dir, "dhcp"), 0o755); err != nil {
		t.Fatal(err)
	}
	sources := []Source{{one, []string{"bridge", "ptp"}}, {two, []string{"dhcp"}}}
	if _, err := Install(dir, sources...); err == nil {
		t.Error("a directory was replaced")
	}
	if diff := cmp.Diff([]string{"dhcp"}, names(t, dir)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
	if err := os.Remove(filepath.Join(dir, "dhcp")); err != nil {
		t.Fatal(err)
	}
	got, err := Install(dir, sources...)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for name, want := range map[string]string{"bridge": "one", "ptp": "one", "dhcp": "two"} {
		if content := read(t, filepath.Join(dir, name)); content != want {
			t.Errorf("%s is %q", name, content)
		}
	}
}

// Another file system: /dev/shm is a tmpfs, the temporary directory usually is
// something else; where it is not, hard links work and that is fine as well.
func TestInstallAcrossFileSystems(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "install")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self := program(t, t.TempDir(), "new")
	if _, err := Install(dir, Source{self, []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	a, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(filepath.Join(dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(a, b) {
		t.Error("the names are two files: IPAM could not be called in-process")
	}
	if a.Mode().Perm() != 0o755 || read(t, filepath.Join(dir, "b")) != "new" {
		t.Errorf("mode %v", a.Mode())
	}
}
