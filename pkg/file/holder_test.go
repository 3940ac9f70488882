// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who waits for a stopped process is told so within seconds, with its number, and gets the lock if the process goes on in time.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	c := exec.Command("flock", path, "sh", "-c", "echo held; exec cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(unix.SIGCONT)
		_ = in.Close()
		_ = c.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	who := fmt.Sprintf("process %d (\"flock\")", c.Process.Pid)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Lock(short, openLock(t, path)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), who) {
		t.Errorf("a process that runs: %v", err)
	}
	if err := c.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*(patience+lookTime))
	defer cancel()
	if err := Lock(ctx, openLock(t, path)); !errors.Is(err, ErrHolderStopped) || !strings.Contains(err.Error(), who) {
		t.Errorf("a stopped process: %v", err)
	}
	got := make(chan error, 1)
	f := openLock(t, path)
	go func() { got <- Lock(ctx, f) }()
	time.Sleep(2 * lookTime)
	if err := c.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	if err := <-got; err != nil {
		t.Errorf("a process that went on and ended: %v", err)
	}
}
