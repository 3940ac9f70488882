// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Main is the program of a machine's first process. It returns only errors, which its maker hears too.
func Main(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%q: a machine is started by Launch", args)
	}
	m, err := Load(args[1])
	if err == nil {
		switch args[0] {
		case "join":
			err = m.join("run")
		case "rejoin":
			err = m.join("rerun")
		case "run":
			err = m.first(false)
		case "rerun":
			err = m.first(true)
		default:
			err = fmt.Errorf("unknown step %q", args[0])
		}
	}
	say(err.Error())
	return err
}

// saying is the descriptor of the pipe to the maker, givenDisk that of the disk of a machine that has run before.
const (
	saying    = 3
	givenDisk = 4
)

func say(line string) {
	pipe := os.NewFile(saying, "maker")
	_, _ = fmt.Fprintln(pipe, line)
	_ = pipe.Close()
}

// join waits until the process is on record and enters the machine's cgroups, which then are the roots of its cgroup namespace. That is
// a thread's, so another program has to take over from this thread. next is its step.
func (m *Machine) join(next string) error {
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return fmt.Errorf("the maker has ended: %w", err)
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := os.WriteFile(filepath.Join(h.at, m.Group, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare cgroup namespace: %w", err)
	}
	return unix.Exec("/proc/self/exe", []string{"/proc/self/exe", Role, next, m.Dir}, os.Environ())
}

// first makes the machine's files and serves the requests for its services until it is killed. again says that the machine has its disk.
func (m *Machine) first(again bool) error {
	s, err := m.listen()
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return err
	}
	if err := m.mountAll(again); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	if err := unix.Dup2(int(null.Fd()), 0); err != nil {
		return err
	}
	_ = null.Close()
	say(ready)
	return s.serve()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}
