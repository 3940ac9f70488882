// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Start is cmd.Start inside the namespace, for a program that runs on beside this process, but not after it: when this one is killed,
// so is the program, unless it has become another user or group since. What it starts is its own business.
func (n *NS) Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error, 2)
	go func() {
		err := n.Do(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			// To the kernel, the parent is this thread: it has to stay as long. Who asks for the exit status is the caller.
			_ = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			return nil
		})
		started <- err
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s in %s: %w", cmd.Path, n.Name, err)
	}
	return nil
}

// Ended waits for the end of a process, at most that long. Signals that interrupt the wait do not end it.
func Ended(pidfd int, limit time.Duration) (bool, error) {
	for late := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(0, time.Until(late)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n == 1, err
		}
	}
}
