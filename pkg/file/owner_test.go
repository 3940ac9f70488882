// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCheckOwner(t *testing.T) {
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
		for name, check := range map[string]func(string) error{"CheckOwner": CheckOwner, "CheckParentOwner": CheckParentOwner} {
			want := tt.own
			if name == "CheckParentOwner" {
				want = tt.parent
			}
			err := check(tt.path)
			var foreign *OwnerError
			if want != (err == nil) || err != nil && !errors.As(err, &foreign) {
				t.Errorf("%s of %s: %v", name, filepath.Base(tt.path), err)
			}
		}
	}
	if err := CheckOwner(filepath.Join(root, "missing")); !errors.Is(err, fs.ErrNotExist) {
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
	var foreign *OwnerError
	for _, check := range []func(string) error{CheckOwner, CheckParentOwner} {
		if err := check(dir); !errors.As(err, &foreign) || foreign.Owned {
			t.Errorf("got %v", err)
		}
	}
}
