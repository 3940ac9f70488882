// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/file"
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
		if err := file.Lock(ctx, f); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Unload removes the file while it holds the lock: who waited then holds a lock that nobody else sees.
		if sameFile(f, path) {
			return f, nil
		}
		_ = f.Close()
	}
}

func sameFile(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
