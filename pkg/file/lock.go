// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// AcquireLock opens the lock file at path and locks it as Lock does. It creates the file, and its directory, if missing.
//
// On a file system that is read-only, a file that is there is locked as it is. Where it is missing, no process can make it, and what it
// would protect on that file system cannot change: AcquireLock then returns a file without name, content and lock.
func AcquireLock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); errors.Is(err, unix.EROFS) {
		return nameless()
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, unix.EROFS) {
			f, err = os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nameless()
			}
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := Lock(ctx, f); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The previous holder may have removed the file: this lock is then on a file that no other process can open.
		if isAt(f, path) {
			return f, nil
		}
		_ = f.Close()
	}
}

// TryLock is AcquireLock for callers that do not wait. It returns nil if another process has the lock, or it cannot be had.
func TryLock(path string) *os.File {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f, err := AcquireLock(ctx, path)
	if err != nil {
		return nil
	}
	return f
}

// nameless returns a file that no other process can open. It has no name, so that a holder who removes its lock file removes nothing.
func nameless() (*os.File, error) {
	fd, err := unix.MemfdCreate("sluice-lock", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return os.NewFile(uintptr(fd), ""), nil
}

func isAt(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Lock takes the exclusive flock(2) of f. Closing f releases it, and so does the end of the process. If ctx ends first,
// Lock returns its error and names the holder. A holder that stays stopped is an error (ErrHolderStopped) sooner. On an error f is closed,
// at once or as soon as the kernel grants the lock, so that the lock does not stay.
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
	go func() { // wait in the kernel's queue: polling may never find the lock free
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				granted <- err
				return
			}
		}
	}()
	err := wait(ctx, f, granted)
	if err != nil {
		go func() {
			<-granted //nolint:errcheck // with or without the lock, the file is closed
			_ = f.Close()
		}()
	}
	return err
}

// wait waits for the lock, and looks now and then at who has it.
func wait(ctx context.Context, f *os.File, granted chan error) error {
	look := time.NewTicker(lookTime)
	defer look.Stop()
	var stopped time.Time // since then, as seen
	for {
		select {
		case err := <-granted:
			if err != nil {
				granted <- err
			}
			return err
		case <-ctx.Done():
			if h, ok := holderOf(f); ok {
				return fmt.Errorf("%w: %s", ctx.Err(), h)
			}
			return ctx.Err()
		case <-look.C:
			h, ok := holderOf(f)
			switch {
			case !ok || !h.stopped:
				stopped = time.Time{}
			case stopped.IsZero():
				stopped = time.Now()
			case time.Since(stopped) > patience:
				return fmt.Errorf("%w: %s. Let it go on, or kill it", ErrHolderStopped, h)
			}
		}
	}
}
