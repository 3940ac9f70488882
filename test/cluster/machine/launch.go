// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Role is the first argument of the program in a machine: a program that calls Launch gives its arguments to Main when they begin so.
const Role = "machine"

// Launch starts the machine, which goes on when the caller ends. Its network namespace has a loopback device that is up, and no other one.
func (m *Machine) Launch(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(m.Dir, "log"), 0o700); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(m.Dir, specFile), m); err != nil {
		return err
	}
	return m.launch(ctx, nil)
}

// launch starts the machine with a disk, or with an empty one.
func (m *Machine) launch(ctx context.Context, disk *os.File) (err error) {
	if err := m.makeGroups(); err != nil {
		return fmt.Errorf("cgroups of %s: %w", m.Name, err)
	}
	said, done, err := m.start(disk)
	if err != nil {
		return fmt.Errorf("start %s: %w", m.Name, err)
	}
	defer func() { _ = said.Close() }()
	line, err := bufio.NewReader(said).ReadString('\n')
	if line = strings.TrimSpace(line); line == ready {
		return nil
	}
	<-done
	return errors.Join(fmt.Errorf("machine %s: %s", m.Name, line), err, ctx.Err())
}

const ready = "ready"

// start starts the first process. It waits until it is on record: one whose maker is killed before ends by itself.
func (m *Machine) start(disk *os.File) (said *os.File, done <-chan struct{}, err error) {
	said, say, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = say.Close() }()
	hold, allow, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = allow.Close() }()
	log, err := os.OpenFile(filepath.Join(m.Dir, "log", "machine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }()
	step, extra := "join", []*os.File{say}
	if disk != nil {
		step, extra = "rejoin", append(extra, disk)
	}
	cmd := exec.Command("/proc/self/exe", Role, step, m.Dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = hold, log, log, extra
	cmd.SysProcAttr = &unix.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	err = cmd.Start()
	_ = hold.Close()
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the machine says why on its pipe
		close(ended)
	}()
	id, err := identify(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(filepath.Join(m.Dir, processFile), id)
	}
	if err == nil {
		_, err = allow.Write([]byte{1})
	}
	return said, ended, err
}

// Kill ends the machine at once with all that runs in it, and returns when that is gone. A machine that has ended is fine.
func (m *Machine) Kill() error {
	id, err := m.process()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	// The descriptor holds the process that has the pid now: is that the machine?
	if _, err := m.process(); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for late := time.Now().Add(20 * time.Second); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(late)).Milliseconds()))
		switch {
		case n == 1:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case time.Now().After(late):
			return fmt.Errorf("machine %s, process %d, does not end", m.Name, id.PID)
		}
	}
}

// Remove ends the machine and removes its cgroups and its folder.
func (m *Machine) Remove() error {
	if err := m.Kill(); err != nil {
		return err
	}
	return errors.Join(RemoveGroups(m.Group), os.RemoveAll(m.Dir))
}
