// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	for _, size := range []int{0, 1, 1023, 1024, 1025, 100_000} {
		want := bytes.Repeat([]byte("x"), size)
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
	if got, err := Read("/proc/sys/kernel/random/boot_id"); err != nil || len(got) != 37 { // its size says 0
		t.Errorf("%q, %v", got, err)
	}
	for path, want := range map[string]error{filepath.Join(path, "x"): nil, path + ".none": fs.ErrNotExist, t.TempDir(): nil} {
		_, err := Read(path)
		var perr *fs.PathError
		if !errors.As(err, &perr) || perr.Path != path || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	f, err := Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("text"); err != nil {
		t.Error(err)
	}
	if fi, err := f.Stat(); err != nil || fi.Mode().Perm()&^0o640 != 0 || f.Name() != path {
		t.Errorf("%v, %v, name %s", fi, err, f.Name())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got, err := Read(path); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
}
