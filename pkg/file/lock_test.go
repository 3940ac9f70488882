// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func openLock(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Who waits gets the lock when it is free; who has given up does not keep it when it comes.
func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first := openLock(t, path)
	if err := Lock(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	for name, wait := range map[string]time.Duration{"waits": 50 * time.Millisecond, "has no time": 0} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if err := Lock(ctx, openLock(t, path)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	got := make(chan error, 1)
	third := openLock(t, path)
	go func() { got <- Lock(t.Context(), third) }()
	select {
	case err := <-got:
		t.Fatalf("two have the lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("one that gave up keeps the lock")
	}
}
