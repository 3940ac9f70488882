// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsFull(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{nil: false, unix.ENOSPC: true, unix.EDQUOT: true, unix.EIO: false, fmt.Errorf("write: %w", unix.ENOSPC): true} {
		if IsFull(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}

func TestOverwrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := Overwrite(path, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		content, want string
		full          bool
	}{{"abcde", "abcde", false}, {"xy", "xy   ", false}, {"123456", "xy   ", true}} {
		err := Overwrite(path, []byte(tt.content))
		got, readErr := os.ReadFile(path)
		if IsFull(err) != tt.full || readErr != nil || string(got) != tt.want {
			t.Errorf("%q: %v, then %q, %v", tt.content, err, got, readErr)
		}
	}
}
