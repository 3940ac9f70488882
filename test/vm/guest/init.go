// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// Where an emulated machine reports: the console is the first serial port, what
// the tests say goes to the second, the exit status to the third. Files of the
// runner are at the other ends.
const (
	resultsPort = "/dev/ttyS1"
	statusPort  = "/dev/ttyS2"
	suitesFile  = "/sluice/suites.json"
)

// initMain is process 1. It never returns: the machine goes off.
func initMain() {
	err := setUp()
	code := 1
	if err == nil {
		code, err = work()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	if err == nil {
		_ = os.WriteFile(statusPort, []byte(strconv.Itoa(code)+"\n"), 0)
	}
	drain(statusPort)
	drain(resultsPort)
	drain("/dev/console")
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // the emulator is told not to start again
	select {}
}

// work does what the command line of the kernel asks for.
func work() (int, error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return 0, err
	}
	switch {
	case strings.Contains(string(line), "sluice.mode=shell"):
		return shell()
	case strings.Contains(string(line), "sluice.mode=true"):
		return 0, nil
	}
	port, err := rawPort(resultsPort)
	if err != nil {
		return 0, err
	}
	defer port.Close()
	if strings.Contains(string(line), "sluice.mode=exec") {
		cmd := exec.Command("/bin/bash", suite.ExecScript)
		cmd.Dir, cmd.Stdout, cmd.Stderr = "/src", port, port
		return wait(cmd)
	}
	cmd := exec.Command("/init", "stream", suitesFile)
	cmd.Stdout, cmd.Stderr = port, os.Stderr
	return wait(cmd)
}

// shell gives the console to a person.
func shell() (int, error) {
	if err := os.Setenv("PS1", `\h:\w\$ `); err != nil {
		return 0, err
	}
	tty, err := os.OpenFile("/dev/ttyS0", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer tty.Close()
	cmd := exec.Command("/bin/bash", "--norc", "-i")
	cmd.Dir = "/src"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return wait(cmd)
}

// wait runs cmd and reaps every process that loses its parent until then.
func wait(cmd *exec.Cmd) (int, error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == cmd.Process.Pid:
			return status.ExitStatus(), nil
		}
	}
}

type mount struct{ kind, dir string }

// setUp makes of an initramfs what a booted machine looks like to a program.
func setUp() error {
	for _, kv := range [][2]string{{"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"}, {"HOME", "/root"}, {"TERM", "linux"}, {"LC_ALL", "C"}} {
		if err := os.Setenv(kv[0], kv[1]); err != nil {
			return err
		}
	}
	for _, m := range []mount{
		{"devtmpfs", "/dev"}, {"devpts", "/dev/pts"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"tmpfs", "/dev/shm"}, {"bpf", "/sys/fs/bpf"}, {"cgroup2", "/sys/fs/cgroup"}, {"debugfs", "/sys/kernel/debug"}, {"tracefs", "/sys/kernel/tracing"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return err
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return err
	}
	// A node of a cluster has these, and nothing would load the last two by itself.
	for _, m := range []string{"nf_conntrack", "tun", "br_netfilter"} {
		if err := modprobe(m); err != nil {
			return err
		}
	}
	return loopbackUp()
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// rawPort opens a serial port that passes bytes as they are.
func rawPort(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	return f, err
}

// drain waits until a serial port has sent everything.
func drain(name string) {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	_ = unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1)
	_ = f.Close()
}
