// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
)

// On a read-only file system a file that is there is a lock. One that is missing is none, and who removes it removes nothing.
func TestPrivilegedReadOnly(t *testing.T) {
	runtime.LockOSThread() // for ever: the thread keeps its mount namespace, and ends with the test
	dir := t.TempDir()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS))
	do(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	do(unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	there := filepath.Join(dir, "there")
	do(os.WriteFile(there, nil, 0o600))
	do(unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	f, err := file.AcquireLock(t.Context(), there)
	do(err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := file.AcquireLock(ctx, there); err == nil {
		t.Error("two hold the lock")
	}
	do(f.Close())
	for _, missing := range []string{"missing", "none/missing"} {
		f, err := file.AcquireLock(t.Context(), filepath.Join(dir, missing))
		do(err)
		if f.Name() != "" {
			t.Errorf("a lock that is missing has the name %q", f.Name())
		}
		do(f.Close())
	}
}
