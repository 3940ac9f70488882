// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

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
