// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Package versions are in the order in which their commits are made, as dpkg compares them. rpm has the same rule for ~ and +.
func TestPackageVersion(t *testing.T) {
	t.Parallel()
	var versions []string
	for _, c := range []struct {
		described, want string
		day             int
	}{
		{"0b6ad2c1f9e4", "0~20261101000000.0b6ad2c1f9e4", 1},
		{"f55a019a9e15", "0~20261102000000.f55a019a9e15", 2},
		{"v1.2.0-rc.1", "1.2.0~rc.1", 3},
		{"v1.2.0-rc.2", "1.2.0~rc.2", 4},
		{"v1.2.0", "1.2.0", 5},
		{"v1.2.0-5-g0b6ad2c1f9e4", "1.2.0+5.g0b6ad2c1f9e4", 6},
		{"v1.2.0-5-g0b6ad2c1f9e4-dirty", "1.2.0+5.g0b6ad2c1f9e4+dirty", 6},
		{"v1.2.1", "1.2.1", 7},
		{"v1.10.0", "1.10.0", 8},
	} {
		r := &release{version: c.described, time: time.Date(2026, 11, c.day, 0, 0, 0, 0, time.UTC)}
		if got := r.packageVersion(); got != c.want {
			t.Errorf("%s becomes %s, want %s", c.described, got, c.want)
		}
		versions = append(versions, r.packageVersion())
	}
	for i := range versions[1:] {
		if err := exec.Command("dpkg", "--compare-versions", versions[i], "lt", versions[i+1]).Run(); err != nil {
			t.Errorf("%s is not older than %s", versions[i], versions[i+1])
		}
	}
}

// Wrong flags are errors that name the flag and the value, before anything is made.
func TestFlags(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("TMPDIR", dir)
	for want, args := range map[string][]string{
		"name what to make":       {"-version", "v1", "-epoch", "1"},
		`-version "a b"`:          {"-version", "a b", "-epoch", "1", "image"},
		`-version "../x"`:         {"-version", "../x", "-epoch", "1", "image"},
		"-epoch":                  {"-version", "v1", "image"},
		`-image "Sluice:1 x"`:     {"-version", "v1", "-epoch", "1", "-image", "Sluice:1 x", "image"},
		`"cake"`:                  {"-version", "v1", "-epoch", "1", "cake"},
		`-arch "mips"`:            {"-version", "v1", "-epoch", "1", "-arch", "amd64,mips", "image"},
		"root of the repository":  {"-version", "v1", "-epoch", "1", "image"},
		"flag provided but not d": {"-colour", "red"},
	} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	if left, err := filepath.Glob("sluice-release-*"); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

// A tree becomes the same archive each time, with its folders. Sorted by size, a folder is still before what is in it.
func TestTree(t *testing.T) {
	t.Parallel()
	at := time.Unix(1764000000, 0)
	tr := tree{}
	tr.add("a/b/program", 0o755, []byte("run"))
	tr.add("a/link", fs.ModeSymlink|0o777, []byte("b/program"))
	tr.add("a.txt", 0o644, []byte("text"))
	tr.add("empty", fs.ModeDir|0o755, nil)
	var one, two bytes.Buffer
	if err := tr.writeTar(&one, at); err != nil {
		t.Fatal(err)
	}
	if err := tr.writeTar(&two, at); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two archives of one tree differ")
	}
	cmd := exec.Command("tar", "--utc", "--full-time", "--numeric-owner", "-tvf", "-")
	cmd.Stdin = &one
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	want := `drwxr-xr-x 0/0               0 2025-11-24 16:00:00 a/
-rw-r--r-- 0/0               4 2025-11-24 16:00:00 a.txt
drwxr-xr-x 0/0               0 2025-11-24 16:00:00 a/b/
-rwxr-xr-x 0/0               3 2025-11-24 16:00:00 a/b/program
lrwxrwxrwx 0/0               0 2025-11-24 16:00:00 a/link -> b/program
drwxr-xr-x 0/0               0 2025-11-24 16:00:00 empty/
`
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	var bySize bytes.Buffer
	if err := tr.writeTarBySize(&bySize, at); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command("tar", "-tf", "-")
	cmd.Stdin = &bySize
	if out, err = output(cmd); err != nil {
		t.Fatal(err)
	}
	if want := "a/\na/b/\nempty/\na/b/program\na.txt\na/link\n"; string(out) != want {
		t.Errorf("by size: %q, want %q", out, want)
	}
}

// A packager finds the same modes and times under any umask, also those of the folder itself, which a deb has as "./".
func TestWriteTo(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	at := time.Unix(1764000000, 0)
	tr := tree{}
	tr.add("a/b/program", 0o755, []byte("run"))
	tr.add("a.txt", 0o644, []byte("text"))
	tr.add("empty", fs.ModeDir|0o755, nil)
	dir := filepath.Join(t.TempDir(), "tree")
	if err := tr.writeTo(dir, at); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{".": 0o755, "a": 0o755, "a/b": 0o755, "a/b/program": 0o755, "a.txt": 0o644, "empty": 0o755} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%s has mode %o and time %s, want %o and %s", name, info.Mode().Perm(), info.ModTime(), mode, at)
		}
	}
}
