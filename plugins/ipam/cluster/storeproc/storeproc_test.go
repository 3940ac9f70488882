// SPDX-License-Identifier: Apache-2.0

package storeproc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
)

// A program that stays in the background has no file that the plugin has inherited: the caller may hold a lock by it.
func TestPrivilegedInheritedFiles(t *testing.T) {
	require.Feature(t, "close_range CLOEXEC", func() error {
		if unix.CloseRange(1<<30, 1<<30, unix.CLOSE_RANGE_CLOEXEC) != nil {
			return require.ErrMissing
		}
		return nil
	})
	dir := t.TempDir()
	program, began := filepath.Join(dir, "store"), filepath.Join(dir, "began")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho $$ > "+began+".new\nmv "+began+".new "+began+"\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], 0); err != nil { // without O_CLOEXEC, as an inherited one
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	defer r.Close()
	if err := (Program{Path: program}).Start(Upkeep, Job{Config: conf.Config{DataDir: dir}}); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(began); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the program does not start")
		}
	}
	defer endByFile(t, began)
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(fds[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the program holds the pipe: %d %v", n, err)
	}
}

// endByFile ends the process whose number the file has.
func endByFile(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, c := range text {
		if c >= '0' && c <= '9' {
			pid = 10*pid + int(c-'0')
		}
	}
	if pid > 1 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}
