// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// envKilled makes this test's process one that starts a program in a namespace and waits to be killed.
const envKilled = "SLUICE_TEST_KILLED"

// What a test or a benchmark has started does not live on when it is killed.
func TestPrivilegedStartEndsWithParent(t *testing.T) {
	if os.Getenv(envKilled) != "" {
		beKilled(t)
		return
	}
	parent := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	parent.Env = append(os.Environ(), envKilled+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = parent.Wait() }()
	defer func() { _ = parent.Process.Kill() }()
	var pid int
	for lines := bufio.NewScanner(out); pid == 0; {
		if !lines.Scan() {
			t.Fatal("the parent has started nothing")
		}
		_, _ = fmt.Sscanf(lines.Text(), "child %d", &pid)
	}
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("the child does not outlive its start: %v", err)
	}
	defer func() { _ = unix.Close(child) }()
	time.Sleep(100 * time.Millisecond) // nothing but the parent's end may end it
	if ended(t, child, 0) {
		t.Fatal("the child ended before its parent")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !ended(t, child, Patient(5*time.Second)) {
		_ = unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0)
		t.Error("the child lives on after its parent")
	}
}

func beKilled(t *testing.T) {
	ns, err := NewNetns("killed")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("child %d\n", cmd.Process.Pid)
	time.Sleep(time.Minute)
}

func ended(t *testing.T, pidfd int, limit time.Duration) bool {
	t.Helper()
	done, err := Ended(pidfd, limit)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func TestPrivilegedStart(t *testing.T) {
	ns, err := NewNetns("start")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	var out strings.Builder
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	cmd.Stdout = &out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	inode, err := ns.Inode()
	if want := fmt.Sprintf("net:[%d]\n", inode); err != nil || out.String() != want {
		t.Errorf("in %q, want %q (%v)", out.String(), want, err)
	}
	if err := ns.Start(exec.Command("/no/such/program")); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("a program that does not exist: %v", err)
	}
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ns.Start(exec.Command("true")); err == nil {
		t.Error("started in a closed namespace")
	}
}
