// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func program(t *testing.T, dir, content string) string {
	t.Helper()
	p := filepath.Join(dir, Multicall)
	if err := os.WriteFile(p, []byte(content), 0o755); err != nil {
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

// names are the files of dir but the lock.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() != lockName {
			out = append(out, e.Name())
		}
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
	for name, content := range map[string]string{"bridge": "upstream", tempPrefix + "old": "left by a killed install", "foreign": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("foreign", filepath.Join(dir, "tuning")); err != nil {
		t.Fatal(err)
	}
	for round, want := range [][]Result{
		{{Name: Multicall, Action: Installed}, {Name: "bridge", Action: Installed, Replaced: true}, {Name: "tuning", Action: Installed, Replaced: true}, {Name: "host-local", Action: Installed}},
		{{Name: Multicall, Action: Unchanged}, {Name: "bridge", Action: Unchanged}, {Name: "tuning", Action: Unchanged}, {Name: "host-local", Action: Unchanged}},
	} {
		got, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: []string{"bridge", "tuning", "host-local"}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i].Path = filepath.Join(dir, want[i].Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round %d (-want +got):\n%s", round, diff)
		}
	}
	if diff := cmp.Diff([]string{"bridge", "foreign", "host-local", Multicall, "tuning"}, names(t, dir)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantStarters(t, dir, dir, "bridge", "tuning", "host-local")
	// What is built over the binary, in place, does not reach the installed plugins.
	if err := os.WriteFile(self, []byte("bug"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, Multicall)); got != "new" {
		t.Errorf("the installed program became %q with the binary", got)
	}
	if got := read(t, filepath.Join(dir, "foreign")); got != "x" {
		t.Errorf("a symlink was followed: foreign holds %q", got)
	}
}

// wantStarters demands that each name is a file of its own, of mode 0755, that starts the program in runtimeDir.
func wantStarters(t *testing.T, dir, runtimeDir string, names ...string) {
	t.Helper()
	for _, n := range names {
		path := filepath.Join(dir, n)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode != unix.S_IFREG|0o755 || st.Nlink != 1 {
			t.Errorf("%s: mode %o, %d links, %v", n, st.Mode, st.Nlink, err)
		}
		if got, want := read(t, path), "#!"+filepath.Join(runtimeDir, Multicall)+"\n"; got != want {
			t.Errorf("%s is %q, want %q", n, got, want)
		}
	}
}

func TestInstallRefusals(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", ".", "..", "a/b", "dir", tempPrefix + "x"} {
		root := t.TempDir()
		self, dir := program(t, root, "new"), filepath.Join(root, "bin")
		if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "bridge"), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: []string{"bridge", bad}}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
		if got := read(t, filepath.Join(dir, "bridge")); got != "old" {
			t.Errorf("with %q refused, bridge was replaced", bad)
		}
		if diff := cmp.Diff([]string{"bridge", "dir"}, names(t, dir)); diff != "" {
			t.Errorf("left behind (-want +got):\n%s", diff)
		}
	}
	if _, err := Install(t.Context(), t.TempDir(), Options{}, Source{Path: "/no/such/file", Names: []string{"bridge"}}); err == nil {
		t.Error("a missing binary was accepted")
	}
	if _, err := Install(t.Context(), t.TempDir(), Options{}, Source{Path: t.TempDir(), Names: []string{"bridge"}}); err == nil {
		t.Error("a directory was accepted as the binary")
	}
	self := program(t, t.TempDir(), "new")
	if _, err := Install(t.Context(), t.TempDir(), Options{RuntimeDir: "opt/cni"}, Source{Path: self, Names: []string{"bridge"}}); err == nil || !strings.Contains(err.Error(), `"opt/cni"`) {
		t.Errorf("a relative runtime directory: %v", err)
	}
}

// Two programs are installed together or not at all.
func TestInstallTwo(t *testing.T) {
	t.Parallel()
	one, two := program(t, t.TempDir(), "one"), program(t, t.TempDir(), "two")
	dir := filepath.Join(t.TempDir(), "bin")
	if _, err := Install(t.Context(), dir, Options{}, Source{Path: one, Names: []string{"bridge"}}, Source{Path: "/no/such/file", Names: []string{"dhcp"}}); err == nil {
		t.Error("a missing second binary was accepted")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made although a binary is missing")
	}
	if err := os.MkdirAll(filepath.Join(dir, "dhcp"), 0o755); err != nil {
		t.Fatal(err)
	}
	sources := []Source{{Path: one, Names: []string{"bridge", "ptp"}}, {Path: two, Program: DHCP, Names: []string{"dhcp"}}}
	if _, err := Install(t.Context(), dir, Options{}, sources...); err == nil {
		t.Error("a directory was replaced")
	}
	if diff := cmp.Diff([]string{"dhcp"}, names(t, dir)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
	if err := os.Remove(filepath.Join(dir, "dhcp")); err != nil {
		t.Fatal(err)
	}
	got, err := Install(t.Context(), dir, Options{}, sources...)
	if err != nil || len(got) != 5 {
		t.Fatalf("%v, %v", got, err)
	}
	for name, want := range map[string]string{Multicall: "one", DHCP: "two", "dhcp": "#!" + filepath.Join(dir, DHCP) + "\n"} {
		if content := read(t, filepath.Join(dir, name)); content != want {
			t.Errorf("%s is %q", name, content)
		}
	}
	wantStarters(t, dir, dir, "bridge", "ptp")
}

// Plugins can be installed one by one. A plugin that is a link to another file, or that not every user may start, is replaced.
func TestInstallNameByName(t *testing.T) {
	t.Parallel()
	self, dir := program(t, t.TempDir(), "new"), t.TempDir()
	starter := "#!" + filepath.Join(dir, Multicall) + "\n"
	for name, perm := range map[string]os.FileMode{"ptp": 0o755, "closed": 0o700, "linked": 0o755} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(starter), perm); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "linked"), filepath.Join(t.TempDir(), "elsewhere")); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		names []string
		want  []Result
	}{
		{[]string{"bridge"}, []Result{{Name: Multicall, Action: Installed}, {Name: "bridge", Action: Installed}}},
		{[]string{"host-local", "bridge"}, []Result{{Name: Multicall, Action: Unchanged}, {Name: "host-local", Action: Installed}, {Name: "bridge", Action: Unchanged}}},
		{[]string{"closed", "linked", "ptp"}, []Result{
			{Name: Multicall, Action: Unchanged}, {Name: "closed", Action: Installed, Replaced: true}, {Name: "linked", Action: Installed, Replaced: true}, {Name: "ptp", Action: Unchanged},
		}},
	} {
		got, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: step.names})
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
	wantStarters(t, dir, dir, "ptp", "bridge", "host-local", "closed", "linked")
}

// Names that are hard links to one file get a file of their own each.
func TestInstallOverHardLinks(t *testing.T) {
	t.Parallel()
	self, dir := program(t, t.TempDir(), "new"), t.TempDir()
	all := []string{"bridge", "ptp", "loopback"}
	if err := os.WriteFile(filepath.Join(dir, all[0]), []byte("new"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range all[1:] {
		if err := os.Link(filepath.Join(dir, all[0]), filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: all}); err != nil {
		t.Fatal(err)
	}
	wantStarters(t, dir, dir, all...)
}

// The runtime's directory is in the starters, whatever path the installer has.
func TestInstallThroughAnotherMount(t *testing.T) {
	t.Parallel()
	self, dir := program(t, t.TempDir(), "new"), t.TempDir()
	if _, err := Install(t.Context(), dir, Options{RuntimeDir: "/opt/cni/bin"}, Source{Path: self, Names: []string{"bridge"}}); err != nil {
		t.Fatal(err)
	}
	wantStarters(t, dir, "/opt/cni/bin", "bridge")
}

// Where the kernel cannot read the path as an interpreter, each plugin is a copy of the program.
func TestInstallCopiesWhereAScriptCannotBe(t *testing.T) {
	t.Parallel()
	for _, runtimeDir := range []string{"/opt/cni plugins", "/opt/" + strings.Repeat("d", maxScript)} {
		self, dir := program(t, t.TempDir(), "new"), t.TempDir()
		if _, err := Install(t.Context(), dir, Options{RuntimeDir: runtimeDir}, Source{Path: self, Names: []string{"bridge", "ptp"}}); err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{Multicall, "bridge", "ptp"} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, n), &st); err != nil || st.Nlink != 1 || read(t, filepath.Join(dir, n)) != "new" {
				t.Errorf("%s: %d links, %v", n, st.Nlink, err)
			}
		}
	}
}

// A program that is in the directory already stays as it is.
func TestInstallFromTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self := program(t, dir, "new")
	if err := os.Chmod(self, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: []string{"bridge", "ptp"}})
	if err != nil || got[0].Action != Unchanged {
		t.Fatalf("%v, %v", got, err)
	}
	wantStarters(t, dir, dir, "bridge", "ptp")
}

// A local user can read the directory and hold a lock on it. Install does not wait for that lock; its own lock file is root's.
func TestInstallDoesNotWaitForTheDirectory(t *testing.T) {
	t.Parallel()
	self, dir := program(t, t.TempDir(), "new"), t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Install(t.Context(), dir, Options{}, Source{Path: self, Names: []string{"bridge"}})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Install waits for a lock on the directory")
	}
	if info, err := os.Stat(filepath.Join(dir, lockName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("lock file: %v, %v", info, err)
	}
}

func TestPluginArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want []string }{
		{[]string{"/opt/cni/bin/bridge"}, []string{"/opt/cni/bin/bridge"}},
		{[]string{"/opt/cni/bin/sluice-cni", "/opt/cni/bin/bridge"}, []string{"/opt/cni/bin/bridge"}},
		{[]string{"/opt/cni/bin/sluice-cni", "bin/bridge"}, []string{"bin/bridge"}},
		{[]string{"/opt/cni/bin/sluice-dhcp", "/opt/cni/bin/dhcp", "daemon", "-h"}, []string{"/opt/cni/bin/dhcp", "daemon", "-h"}},
		{[]string{"/opt/cni/bin/sluice-dhcp", "daemon"}, []string{"/opt/cni/bin/sluice-dhcp", "daemon"}},
		{[]string{"/opt/cni/bin/sluice-cni", "/opt/cni/bin/dhcp"}, []string{"/opt/cni/bin/sluice-cni", "/opt/cni/bin/dhcp"}},
		{[]string{"sluice-cni"}, []string{"sluice-cni"}},
		{nil, nil},
	} {
		if got := PluginArgs(tt.args); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}

// Files of Sluice go, plugins before the programs that they start. Those of other suites stay.
func TestRemove(t *testing.T) {
	t.Parallel()
	for name, runtimeDir := range map[string]string{"starters": "", "copies": "/opt/cni plugins"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, dir := t.TempDir(), filepath.Join(t.TempDir(), "bin")
			for _, p := range Programs() {
				if err := os.WriteFile(filepath.Join(from, p.Name), []byte("content of "+p.Name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Remove(t.Context(), dir, Options{RuntimeDir: runtimeDir}); err != nil {
				t.Errorf("without a directory: %v", err)
			}
			if _, err := Install(t.Context(), dir, Options{RuntimeDir: runtimeDir}, Sources(from, Plugins())...); err != nil {
				t.Fatal(err)
			}
			for _, foreign := range []string{"multus", "bridge", "flannel"} {
				if err := os.WriteFile(filepath.Join(dir, foreign), []byte("foreign"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			removed, err := Remove(t.Context(), dir, Options{RuntimeDir: runtimeDir})
			if err != nil || slices.Contains(removed, "bridge") || !slices.Contains(removed, "ptp") {
				t.Errorf("removed %v, %v", removed, err)
			}
			if a, b := slices.Index(removed, "ptp"), slices.Index(removed, Multicall); a > b {
				t.Errorf("%s went before ptp", Multicall)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 3 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// A program of any length is written whole, in pieces as large as the page cache has them.
func TestPieces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, size := range []int{0, 1, pieceSize - 1, pieceSize, pieceSize + 1, 2*pieceSize + 3} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(i * 7 / 5)
		}
		path := filepath.Join(dir, "program")
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		var lengths []int
		if err := (content{file: path}).writeTo(writer(func(p []byte) {
			got.Write(p)
			lengths = append(lengths, len(p))
		})); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes came as %d others", size, got.Len())
		}
		for i, n := range lengths {
			if n != pieceSize && i != len(lengths)-1 {
				t.Errorf("%d bytes: pieces of %v", size, lengths)
			}
		}
	}
	if err := (content{file: filepath.Join(dir, "none")}).writeTo(writer(func([]byte) {})); err == nil {
		t.Error("a program that is missing is written")
	}
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}
