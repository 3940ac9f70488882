// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/install"
)

// asTool makes the test's own program the tool.
const asTool = "SLUICE_TEST_AS_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(asTool) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A command that waits for a pipe that is not read does not see the first signal. The second ends it.
func TestSecondSignalKills(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "completion", "bash")
	cmd.Env = append(os.Environ(), asTool+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if f, ok := out.(*os.File); ok {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it is about to fill the pipe
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for range 50 {
		_ = cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	t.Error("50 signals did not end it")
}

// An install that waits for another one ends with the first signal, and has installed nothing.
func TestInstallDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	from, dir := t.TempDir(), t.TempDir()
	for _, program := range []string{install.Multicall, install.Helper, install.DHCP, install.IPAM, install.IPAMStore} {
		if err := os.WriteFile(filepath.Join(from, program), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	other, err := file.AcquireLock(t.Context(), filepath.Join(dir, ".sluice-install.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out, errs strings.Builder
	ended := make(chan int, 1)
	go func() {
		ended <- newApp(&out, &errs).run(ctx, []string{"install", "--binary", filepath.Join(from, install.Multicall), dir})
	}()
	select {
	case status := <-ended:
		if status != 1 || !strings.Contains(errs.String(), dir) {
			t.Errorf("%d, %s", status, &errs)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 { // the lock
		t.Errorf("%v, %v", entries, err)
	}
}
