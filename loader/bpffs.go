// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountBPFFS makes sure that a bpffs is at path. It mounts one where the directory exists and holds another file system, as
// the other eBPF suites do: many distributions leave that to the first user. The lock keeps two processes from mounting over
// each other, which would hide the pins of the first.
func mountBPFFS(path, runDir string) error {
	if ok, err := isBPFFS(path); ok || err != nil {
		return err
	}
	unlock, err := acquire(context.Background(), filepath.Join(runDir, "bpffs.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if ok, err := isBPFFS(path); ok || err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME
	if err := unix.Mount("bpffs", path, "bpf", flags, "mode=0700"); err != nil {
		return sayNo("%s is not a bpffs and mounting one there fails: %v: mount it with \"mount -t bpf bpffs %s\"", path, err, path)
	}
	return nil
}

// isBPFFS reports whether path lies on a bpffs. The error is a definite no.
func isBPFFS(path string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false, sayNo("%s: %v: the kernel has no BPF file system, or the directory must be made", path, err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// kernelAtLeast compares with the running kernel's version; an unreadable version counts as new.
func kernelAtLeast(major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(kernelRelease(), "%d.%d", &a, &b); err != nil {
		return true
	}
	return a > major || a == major && b >= minor
}
