// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that holds the lock and does not go on (it was stopped, or frozen) must not hang every verb of every pod.
func TestLockHeld(t *testing.T) {
	t.Parallel()
	d := Open(t.TempDir())
	d.patience = 50 * time.Millisecond
	mustBegin(t, d, ref, "bridge", nil)
	path := filepath.Join(d.Path(), lockName)
	holder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Begin":    func() error { return d.Begin(ref, "", "bridge", nil) },
		"Complete": func() error { return d.Complete(ref, "bridge", nil) },
		"Remove":   func() error { return d.Remove(ref, "bridge") },
	} {
		if err := within(t, f); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one that names %s", name, err, path)
		}
	}
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	// Those that have given up do not keep what they waited for.
	d.patience = lockPatience
	if err := within(t, func() error { return d.Remove(ref, "bridge") }); err != nil {
		t.Error(err)
	}
}

func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}
