// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Acquire opens the lock file at path, which it makes with its directory if need be, and locks it as Lock does.
func Acquire(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	for {
		f, err := Open(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := Lock(ctx, f); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Somebody may have removed the file while he held the lock: who waited then holds one that nobody else sees.
		if isAt(f, path) {
			return f, nil
		}
		_ = f.Close()
	}
}

func isAt(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Lock takes the exclusive flock(2) of f, which closing f releases, and so does the end of the process. The wait ends with ctx,
// whose error is returned then: whoever holds the lock may be stopped, or not of ours. On an error f is closed, now or as soon
// as the lock is granted, so that it does not stay.
func Lock(ctx context.Context, f *os.File) error {
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		_ = f.Close()
		return err
	}
	granted := make(chan error, 1)
	go func() { // in the kernel's queue: those who ask again and again may never be lucky
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				granted <- err
				return
			}
		}
	}()
	select {
	case err := <-granted:
		if err != nil {
			_ = f.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			<-granted //nolint:errcheck // with or without the lock, the file is closed
			_ = f.Close()
		}()
		return ctx.Err()
	}
}
