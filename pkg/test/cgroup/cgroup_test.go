// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// joinArg makes the test binary a process that joins its cgroup and waits to be killed.
const joinArg = "join"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != joinArg {
		os.Exit(m.Run())
	}
	dir, err := Join()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGINT, unix.SIGHUP) // which nohup(1) and shells in the background have ignored
	fmt.Println(dir)
	select {
	case <-ended:
		os.Exit(1)
	case <-time.After(time.Minute):
	}
}

// The cgroup goes with its process, however that ends: ctrl-C at a terminal is a signal to all that it has started, too.
func TestPrivilegedGoesWithItsProcess(t *testing.T) {
	if _, err := Mount(); errors.Is(err, ErrNone) {
		t.Skip("missing feature: cgroup v2")
	}
	for _, tt := range []struct {
		name   string
		signal unix.Signal
	}{{"killed", unix.SIGKILL}, {"interrupted", unix.SIGINT}, {"hung up", unix.SIGHUP}} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", joinArg)
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // what a shell gives a command of a terminal
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Wait() }()
			defer func() { _ = cmd.Process.Kill() }()
			var dir string
			if _, err := fmt.Fscanln(out, &dir); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("Join says %q: %v", dir, err)
			}
			if err := unix.Kill(-cmd.Process.Pid, tt.signal); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
					return
				}
			}
			t.Errorf("%s is still there (%v)", dir, os.Remove(dir))
		})
	}
}
