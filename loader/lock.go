// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// acquire takes the exclusive lock file at path, which closing releases. The kernel releases it too when the process
// dies, at whatever point. The wait ends with ctx.
func acquire(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := flock(ctx, f); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Unload removes the file while it holds the lock: who waited then holds a lock that nobody else sees.
		if sameFile(f, path) {
			return f, nil
		}
		_ = f.Close()
	}
}

// flock locks f; on error f is closed, now or as soon as the lock is granted.
func flock(ctx context.Context, f *os.File) error {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		_ = f.Close()
		return err
	}
	var lockErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lockErr = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		for errors.Is(lockErr, unix.EINTR) {
			lockErr = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
	}()
	select {
	case <-done:
		if lockErr != nil {
			_ = f.Close()
		}
		return lockErr
	case <-ctx.Done():
		go func() {
			<-done
			_ = f.Close()
		}()
		return ctx.Err()
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
