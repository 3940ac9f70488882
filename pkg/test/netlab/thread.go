// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onFreshThread runs f on an OS thread that ends with it, so f may change the
// thread's namespaces without having to put them back. The thread is never the
// process's first one: that one cannot end, and /proc/self names it.
func onFreshThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// Keep the first thread occupied while another one is found.
			err := onFreshThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		// A panic must reach the process as one, so it is not recovered.
		done <- f()
		// Still locked: the runtime ends the thread with this goroutine.
	}()
	return <-done
}

// enter moves the calling thread into a network namespace and, unless mnt is
// nil, a mount namespace. The thread keeps its working directory when the
// mount namespace has a directory of that name.
func enter(net, mnt *os.File) error {
	if mnt != nil {
		dir, dirErr := os.Getwd()
		// setns(CLONE_NEWNS) is refused for a thread that shares its root and
		// working directory with others.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare fs of thread: %w", err)
		}
		if err := unix.Setns(int(mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter mount namespace: %w", err)
		}
		if dirErr == nil {
			_ = unix.Chdir(dir)
		}
	}
	if err := unix.Setns(int(net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// openThreadNS opens a namespace ("net" or "mnt") of the calling thread.
func openThreadNS(kind string) (*os.File, error) {
	return os.Open("/proc/thread-self/ns/" + kind)
}
