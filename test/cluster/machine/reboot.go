// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Reboot ends the machine at once, as a power cut does, and starts it again with the disk that it had. All else is new: namespaces, processes,
// cgroups, mounts, /run, /tmp, the bpffs and the id of the boot. The network devices and services are the caller's to bring back. The clocks
// go on: to them, the machine began with the real one. It needs Linux 5.2 for open_tree(2).
func (m *Machine) Reboot(ctx context.Context) error {
	whole, err := Load(m.Dir)
	if err != nil {
		return err
	}
	d, err := m.openDisk()
	if err != nil {
		return fmt.Errorf("disk of %s: %w", m.Name, err)
	}
	defer func() { _ = d.Close() }()
	if err := errors.Join(m.Kill(), RemoveGroups(m.Group)); err != nil {
		return err
	}
	return whole.launch(ctx, d)
}

// openDisk returns a mount of the machine's disk that stays when the machine ends.
func (m *Machine) openDisk() (*os.File, error) {
	pid, err := m.PID()
	if err != nil {
		return nil, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	var fd int
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, for it stays in the machine's mounts
		done <- func() (err error) {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			fd, err = unix.OpenTree(unix.AT_FDCWD, filepath.Join(Shared, disk), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			return err
		}()
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), disk), nil
}
