// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestWriteReplacesFile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o    Options
		mode os.FileMode
	}{
		"zero":    {Options{}, 0o600},
		"named":   {Options{Temp: ".tmp", Mode: 0o644, Sync: SyncContent}, 0o644},
		"durable": {Options{Sync: SyncName}, 0o600},
		"random":  {Options{Temp: ".tmp-*"}, 0o600},
		"wide":    {Options{Temp: "*", Mode: 0o666}, 0o666}, // which the umask would narrow
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			if err := os.Symlink("/dev/full", path); err != nil {
				t.Fatal(err)
			}
			for _, content := range []string{"long content", "short"} {
				if err := Write(path, []byte(content), tt.o); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != content {
					t.Errorf("got %q, %v", got, err)
				}
			}
			st, err := os.Lstat(path)
			if err != nil || st.Mode() != tt.mode {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
			if got := listDir(t, dir); len(got) != 1 {
				t.Errorf("left %q", got)
			}
		})
	}
}

// A Write that fails keeps the old content and leaves nothing beside it.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), os.Symlink("/dev/full", path+".new")); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), Options{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" || len(listDir(t, dir)) != 1 {
		t.Errorf("%q, %v, %q", got, err, listDir(t, dir))
	}
	for _, o := range []Options{{}, {Temp: "*"}} {
		if err := Write(filepath.Join(dir, "missing", "f"), nil, o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no directory: %v", err)
		}
		if err := Write(dir, nil, o); err == nil { // a directory is not replaced
			t.Error("a directory was replaced")
		}
		if got := listDir(t, filepath.Dir(dir)); len(got) != 1 {
			t.Errorf("left %q", got)
		}
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	path := filepath.Join(dir, "10-net.conflist")
	if content, err := Read(path); content != nil || err != nil {
		t.Errorf("no file: %q, %v", content, err)
	}
	for _, tt := range []struct {
		content string
		changed bool
	}{{"a", true}, {"a", false}, {"b", true}} {
		if changed, err := Update(path, []byte(tt.content), 0o644); changed != tt.changed || err != nil {
			t.Errorf("%s: %t, %v", tt.content, changed, err)
		}
	}
	left := filepath.Join(dir, ".10-net.conflist.123"+temporary)
	for _, sweeps := range []func() error{
		func() error { _, err := Update(path, []byte("c"), 0o644); return err },
		func() error { return Discard(path) },
		func() error { return Discard(path) }, // nothing there
	} {
		if err := errors.Join(os.WriteFile(left, nil, 0o600), sweeps()); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(left); err == nil {
			t.Error("what a killed Update left is still there")
		}
	}
	if got := listDir(t, dir); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}

func TestTryLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	f := TryLock(path)
	if f == nil || TryLock(path) != nil {
		t.Error("two or none have the lock")
	}
	_ = f.Close()
	if f = TryLock(path); f == nil {
		t.Fatal("a lock that was given back cannot be had")
	}
	_ = f.Close()
}
