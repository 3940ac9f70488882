// SPDX-License-Identifier: Apache-2.0

package dirowner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := func(name string, mode os.FileMode) string {
		path := filepath.Join(root, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link, file := filepath.Join(root, "link"), filepath.Join(root, "file")
	own := dir("own", 0o755)
	if err := errors.Join(os.Symlink(own, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path        string
		own, parent bool
	}{
		{own, true, true},
		{dir("group", 0o770), false, false},
		{dir("others", 0o707), false, false},
		{dir("sticky", 0o777|os.ModeSticky), false, true},
		{link, false, true},
		{file, false, true},
	}
	for _, tt := range tests {
		for name, check := range map[string]func(string) error{"Check": Check, "CheckParent": CheckParent} {
			want := tt.own
			if name == "CheckParent" {
				want = tt.parent
			}
			err := check(tt.path)
			var foreign *ForeignError
			if want != (err == nil) || err != nil && !errors.As(err, &foreign) {
				t.Errorf("%s of %s: %v", name, filepath.Base(tt.path), err)
			}
		}
	}
	if err := Check(filepath.Join(root, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

// A directory of another user is refused whatever its mode.
func TestPrivilegedOtherOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	var foreign *ForeignError
	for _, check := range []func(string) error{Check, CheckParent} {
		if err := check(dir); !errors.As(err, &foreign) || foreign.Owned {
			t.Errorf("got %v", err)
		}
	}
}
